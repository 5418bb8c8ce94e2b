package v1

import (
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// DefaultInstallation is the name of the installation if the configuration names no lease.
	DefaultInstallation = "pool-priority-scheduler"

	// stockLease is kube-scheduler's default for the name of the lease.
	stockLease = "kube-scheduler"
)

// InstallationOf returns the name of the installation: the name of its leader's lease (leaderElection.resourceName). A
// name that cannot be the value of a taint is an error.
func InstallationOf(lease string) (string, *field.Error) {
	if lease == "" || lease == stockLease { // without leader election, the default is left in place and no process holds this lease
		return DefaultInstallation, nil
	}
	if errs := utilvalidation.IsValidLabelValue(lease); len(errs) > 0 {
		return "", field.Invalid(field.NewPath("leaderElection", "resourceName"), lease,
			"the name is also the value of the gate taint: "+strings.Join(errs, "; "))
	}
	return lease, nil
}
