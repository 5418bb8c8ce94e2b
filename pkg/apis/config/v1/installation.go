package v1

import (
	"errors"
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

// ErrStockLease is the error for a scheduler that would take the lease of the cluster's default scheduler, but not its name.
var ErrStockLease = errors.New("leaderElection: kube-system/kube-scheduler is the lease of the cluster's default scheduler, which would stop while this scheduler holds the lease: leave out resourceName and resourceNamespace")

// InstallationOf returns the name of the installation, which is the name of the leader's lease
// (leaderElection.resourceName). It returns an error if the name cannot be the value of a taint.
func InstallationOf(lease string) (string, *field.Error) {
	if lease == "" || lease == stockLease { // without leader election, resourceName keeps this default and no process uses the lease
		return DefaultInstallation, nil
	}
	if errs := utilvalidation.IsValidLabelValue(lease); len(errs) > 0 {
		return "", field.Invalid(field.NewPath("leaderElection", "resourceName"), lease,
			"the name is also the value of the gate taint: "+strings.Join(errs, "; "))
	}
	return lease, nil
}
