// +k8s:deepcopy-gen=package

// Package v1 is the configuration that users write: PoolPriorityArgs, the arguments of the PoolPriority plugin in a
// KubeSchedulerConfiguration. It is the one typed, strictly decoded and fully validated form of it.
//
// hack/configdoc writes the tables in docs/configuration.md from this package: the texts are the comments of the
// fields, the defaults come from SetDefaults_PoolPriorityArgs and the ranges from Validate. The comments call other
// fields by the names that users write.
package v1
