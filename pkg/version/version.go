// Package version holds the version of this build and the supported versions of API servers.
package version

import (
	"fmt"
	"strconv"
	"strings"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/compat"
)

// ours is the version of this build. The linker sets it.
var ours = "unknown"

// oldest is the oldest minor version of Kubernetes 1.x for which there is a build.
const oldest = 35

// built is the minor version of Kubernetes 1.x that this binary is built for. It is also the oldest supported version
// of the API server. A kube-scheduler may be one minor version older than the API server, so built+1 is the newest
// version of the API server with which the binary was tested.
var built = func() int {
	minor, err := strconv.Atoi(strings.TrimPrefix(compat.Minor, "1."))
	if err != nil {
		panic(err)
	}
	return minor
}()

// String returns our version and the version of the Kubernetes libraries that are built in.
func String() string { return fmt.Sprintf("%s (Kubernetes %s)", ours, version.Get().GitVersion) }

// Ours returns our version, without the version of Kubernetes.
func Ours() string { return ours }

// Minor returns the API server's major and minor version, such as "1.36".
func Minor(server *apimachineryversion.Info) string {
	return server.Major + "." + strings.TrimSuffix(server.Minor, "+") // cloud providers append a "+" to the minor version
}

// Check compares the API server's version with the version that this binary is built for. If the API server is older,
// Check returns an error. If the API server is newer by more than one minor version, or if its version cannot be
// parsed, Check returns a warning.
func Check(server *apimachineryversion.Info) (warning string, err error) {
	minor, parseErr := strconv.Atoi(strings.TrimPrefix(Minor(server), "1."))
	switch {
	case parseErr != nil:
		return fmt.Sprintf("the API server's version, Kubernetes %s.%s (%s), cannot be parsed; this build is for 1.%d", server.Major, server.Minor, server.GitVersion, built), nil
	case minor < built:
		remedy := "upgrade the cluster"
		if minor >= oldest {
			remedy = fmt.Sprintf("install the build for 1.%d", minor)
		}
		return "", fmt.Errorf("the API server is Kubernetes 1.%d (%s), and this build needs 1.%d or later: %s", minor, server.GitVersion, built, remedy)
	case minor > built+1:
		return fmt.Sprintf("the API server is Kubernetes 1.%d (%s), newer than 1.%d, the latest that this build was tested with: install a newer build", minor, server.GitVersion, built+1), nil
	}
	return "", nil
}

// Supported returns an error if no build supports the API server's version, and nil if its version cannot be parsed.
func Supported(server *apimachineryversion.Info) error {
	minor, err := strconv.Atoi(strings.TrimPrefix(Minor(server), "1."))
	if err == nil && minor < oldest {
		return fmt.Errorf("the API server is Kubernetes 1.%d (%s), and this scheduler needs 1.%d or later", minor, server.GitVersion, oldest)
	}
	return nil
}

// CheckServer reads the API server's version, logs the warning of Check, and returns the error of Check. If the version
// cannot be read, CheckServer returns nil, because the API server may be unavailable for a moment.
func CheckServer(logger klog.Logger, client discovery.ServerVersionInterface) error {
	info, err := client.ServerVersion()
	if err != nil {
		logger.Error(err, "The API server's version cannot be read")
		return nil
	}
	warning, err := Check(info)
	if warning != "" {
		logger.Info("Warning: " + warning)
	}
	return err
}
