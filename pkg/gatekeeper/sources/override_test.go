package sources

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"

	"poolpriority.dev/scheduler/pkg/gate"
)

// TestUnreadOverrideIsNotLogged: if the ConfigMap is read after the first Observe and does not exist, no end of an
// override is logged.
func TestUnreadOverrideIsNotLogged(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	informer := coreinformers.NewFilteredConfigMapInformer(fake.NewClientset(), metav1.NamespaceDefault, 0, cache.Indexers{}, nil)
	o := &Override{object: &watched{informer: informer}}
	check := func(want gate.OverriddenGate) {
		t.Helper()
		o.Observe(logger, time.Now())
		if got := o.Current.Load().Gate; got != want {
			t.Errorf("the override is %q, want %q", got, want)
		}
	}
	check(gate.OverrideUnread)
	go informer.RunWithContext(t.Context())
	cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced)
	check("")
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); log != "" {
		t.Errorf("logged:\n%s", log)
	}
}
