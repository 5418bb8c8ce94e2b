package v1

import (
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// DefaultInstallation is the name of an installation whose configuration names no lease of its own.
	DefaultInstallation = "pool-priority-scheduler"

	// stockLease is the lease's name by kube-scheduler's defaults.
	stockLease = "kube-scheduler"
)

// InstallationOf returns the name of the installation whose leader's lease (leaderElection.resourceName) has the name given. It is an error if that
// cannot be the value of a taint.
func InstallationOf(lease string) (string, *field.Error) {
	if lease == "" || lease == stockLease { // without leader election, it is nobody's
		return DefaultInstallation, nil
	}
	if errs := utilvalidation.IsValidLabelValue(lease); len(errs) > 0 {
		return "", field.Invalid(field.NewPath("leaderElection", "resourceName"), lease,
			"it names the installation, and is the value of the gate taint: "+strings.Join(errs, "; "))
	}
	return lease, nil
}
