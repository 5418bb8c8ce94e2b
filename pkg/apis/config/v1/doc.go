// +k8s:deepcopy-gen=package

// Package v1 is the configuration that users write: PoolPriorityArgs, the arguments of the PoolPriority plugin in a
// KubeSchedulerConfiguration. All programs of the project read the arguments in this form: typed, strictly decoded and
// validated.
//
// hack/configdoc writes the tables in docs/configuration.md from this package: the texts are the comments of the
// fields, the defaults come from SetDefaults_PoolPriorityArgs and the ranges from Validate. Comments refer to other
// fields by their names in YAML.
package v1
