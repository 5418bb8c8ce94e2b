// +k8s:deepcopy-gen=package

// Package v1 is the configuration that users write: PoolPriorityArgs, the arguments of the PoolPriority plugin in a
// KubeSchedulerConfiguration. It is the one typed, strictly decoded and fully validated form of it.
package v1
