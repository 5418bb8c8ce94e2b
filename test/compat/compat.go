// Package compat holds what tests and benchmarks need of kube-scheduler and what differs between its minor versions. A
// file's name says which of them it is for.
package compat
