package lease

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// changedLock is a lock that was written after this process last read it. Updates conflict until the process reads it.
type changedLock struct {
	resourcelock.Interface
	holder string // of the other write
	read   bool
}

func (l *changedLock) Identity() string { return "me" }

func (l *changedLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.read = true
	return &resourcelock.LeaderElectionRecord{HolderIdentity: l.holder}, nil, nil
}

func (l *changedLock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	if !l.read {
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "l", nil)
	}
	return nil
}

// TestRelease: a release that conflicts with this process's own renewal is tried again. If another process holds the
// lease, the release is not tried again.
func TestRelease(t *testing.T) {
	for _, tc := range []struct {
		name, holder, record string
		released             bool
	}{
		{"our own renewal", "me", "", true},
		{"another holds it", "other", "", false},
		{"a renewal is not tried again", "me", "me", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Announce(&changedLock{holder: tc.holder}, NewLeadership()).Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: tc.record, LeaseDurationSeconds: 10})
			if (err == nil) != tc.released {
				t.Errorf("error %v", err)
			}
		})
	}
}
