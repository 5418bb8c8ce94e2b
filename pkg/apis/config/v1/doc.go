// +k8s:deepcopy-gen=package

// Package v1 defines PoolPriorityArgs, the arguments of the PoolPriority plugin in a KubeSchedulerConfiguration. Users
// write these arguments. All programs of the project decode them strictly into PoolPriorityArgs and validate them.
//
// hack/configdoc generates the tables in docs/configuration.md from this package. It takes the texts from the comments
// of the fields, the defaults from SetDefaults_PoolPriorityArgs and the ranges from Validate. Comments refer to other
// fields by their names in YAML.
package v1
