package v1

import (
	"cmp"
	"os"
	"strings"
)

const (
	// NamespaceVariable is the environment variable in which the manifests pass the pod's namespace.
	NamespaceVariable = "POD_NAMESPACE"
	// StatusName is the default name of the ConfigMap in which the leader publishes the pools' states.
	StatusName = "pool-priority-status"

	outsideCluster = "pool-priority-system"
)

// serviceAccountNamespace is the path of the file in which the kubelet writes the pod's namespace. Tests change the
// path.
var serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// PodNamespace returns the namespace of this process's leases and published state. It returns the value of
// POD_NAMESPACE or, if that is empty, the namespace of the pod's ServiceAccount. Outside of a cluster, it returns
// pool-priority-system.
func PodNamespace() string {
	mounted, _ := os.ReadFile(serviceAccountNamespace) // empty outside of a pod
	return cmp.Or(os.Getenv(NamespaceVariable), strings.TrimSpace(string(mounted)), outsideCluster)
}
