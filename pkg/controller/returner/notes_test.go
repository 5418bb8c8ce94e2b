package returner

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
)

// TestNoteOfAChangedPod: a note is for the pod as it was looked at, which may have been bound to a burst node since,
// and is tried again where the API server has another.
func TestNoteOfAChangedPod(t *testing.T) {
	c := newCluster(t, virtual(), node("user", "user", "1").Obj())
	answers := []error{
		apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "waits", errors.New("it has changed")),
		apierrors.NewInternalError(errors.New("the disk is full")),
	}
	var patches []string
	c.client.PrependReactor("patch", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		patches = append(patches, string(action.(k8stesting.PatchAction).GetPatch()))
		answer := answers[0]
		answers = answers[1:]
		return true, nil, answer
	})
	waits := pod("waits", 0).Obj()
	waits.Spec.NodeName, waits.UID, waits.ResourceVersion = "", "uid-of-waits", "17"
	c.notes["uid-of-waits"] = "1 tomorrow"
	c.notes["uid-of-one-that-is-gone"] = "1 tomorrow"
	w := &world{pods: map[types.UID]*corev1.Pod{"uid-of-waits": waits}, burst: map[types.UID]bool{}}
	c.writeNotes(c.ctx, w)
	if len(c.notes) != 1 || c.notes["uid-of-waits"] == "" {
		t.Errorf("after a conflict it is to be noted: %v", c.notes)
	}
	c.writeNotes(c.ctx, w)
	if len(c.notes) != 0 {
		t.Errorf("after an error it is to be noted: %v", c.notes)
	}
	for _, patch := range patches {
		if !strings.Contains(patch, `"resourceVersion":"17"`) || !strings.Contains(patch, `"uid":"uid-of-waits"`) {
			t.Errorf("the patch is for any pod of the name: %s", patch)
		}
	}
	if len(patches) != 2 {
		t.Errorf("%d patches, want 2", len(patches))
	}
}
