package v1

import (
	"bytes"
	"errors"
)

// ConfigAnnotation is the annotation of the scheduler's and the controller's pods that holds their KubeSchedulerConfiguration. A
// downwardAPI volume gives it to them as a file, byte for byte. It is in the pod template, so that each ReplicaSet keeps the
// configuration that it was made with. The API server takes 256 KiB of annotations per object.
const ConfigAnnotation = "poolpriority.dev/config"

// ErrEmpty says that a configuration file has nothing in it: that is how a downwardAPI volume shows an annotation that is missing.
var ErrEmpty = errors.New("the configuration is empty: the pod has no annotation " + ConfigAnnotation +
	". With kustomize, add the component manifests/components/config and generate the ConfigMap pool-priority-config beside it")

func empty(data []byte) bool { return len(bytes.TrimSpace(data)) == 0 }
