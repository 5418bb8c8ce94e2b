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
)

// ours is stamped when the binaries are built.
var ours = "unknown"

// built is the minor version of Kubernetes 1 that this version is built for, the oldest that it runs against. tested is
// the newest minor version that it was tested with.
const (
	built  = 35
	tested = 35
)

// String returns our version and the version of the Kubernetes libraries that are built in.
func String() string { return fmt.Sprintf("%s (Kubernetes %s)", ours, version.Get().GitVersion) }

// Check compares the API server's version with built and tested. A minor version older than built is an error. A minor
// version newer than tested, or a version that cannot be parsed, is a warning.
func Check(server *apimachineryversion.Info) (warning string, err error) {
	minor, parseErr := strconv.Atoi(strings.TrimSuffix(server.Minor, "+")) // providers mark theirs with a "+"
	switch {
	case parseErr != nil || server.Major != "1":
		return fmt.Sprintf("the API server's version, Kubernetes %s.%s (%s), cannot be parsed; this version is built for 1.%d", server.Major, server.Minor, server.GitVersion, built), nil
	case minor < built:
		return "", fmt.Errorf("the API server is Kubernetes 1.%d (%s), and this version needs 1.%d or later: upgrade the cluster, or install the version that is built for 1.%d", minor, server.GitVersion, built, minor)
	case minor > tested:
		return fmt.Sprintf("the API server is Kubernetes 1.%d (%s), newer than 1.%d, the latest that this version was tested with", minor, server.GitVersion, tested), nil
	}
	return "", nil
}

// CheckServer reads the API server's version, logs the warning of Check, and returns its error. If the version cannot
// be read, CheckServer returns nil, because the API server may be unavailable for a moment.
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
