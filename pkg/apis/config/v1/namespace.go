package v1

import (
	"cmp"
	"os"
	"strings"
)

const (
	// NamespaceVariable is the environment variable with the pod's namespace, which the manifests set.
	NamespaceVariable = "POD_NAMESPACE"
	// StatusName is the name of the ConfigMap in which the leader publishes the pools' states, unless the arguments
	// name another.
	StatusName = "pool-priority-status"

	outsideCluster = "pool-priority-system"
)

// serviceAccountNamespace is where the kubelet puts the namespace of a pod's ServiceAccount. It is a variable for
// tests.
var serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// PodNamespace returns the namespace of this process's leases and published state. It is the value of POD_NAMESPACE, or
// else the namespace of the pod's ServiceAccount, or else, outside of a cluster, pool-priority-system.
func PodNamespace() string {
	mounted, _ := os.ReadFile(serviceAccountNamespace) // empty outside of a pod
	return cmp.Or(os.Getenv(NamespaceVariable), strings.TrimSpace(string(mounted)), outsideCluster)
}
