package capacitybuffer

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"poolpriority.dev/scheduler/test/must"
)

// TestList reads what the real Karpenter wrote, in the version that the cluster has.
func TestList(t *testing.T) {
	written := must.ReadFile(t, "testdata/karpenter-1.14.json")
	for served, want := range map[string]int{"v1beta1": 1, "v1alpha1": 1, "": 0, "broken": -1} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case served == "broken":
				http.Error(w, "broken", http.StatusForbidden)
			case r.URL.Path == "/apis/autoscaling.x-k8s.io/"+served+"/capacitybuffers":
				_, _ = w.Write(written)
			default:
				http.NotFound(w, r)
			}
		}))
		defer server.Close()
		client := must.Get(kubernetes.NewForConfig(&rest.Config{Host: server.URL}))(t)
		buffers, err := List(t.Context(), client.CoreV1().RESTClient())
		if want < 0 {
			if err == nil {
				t.Error("no error")
			}
			continue
		}
		must.NoError(t, err)
		if len(buffers) != want || want == 1 && (!buffers[0].IsActive() || buffers[0].Status.Replicas != 9 || buffers[0].Status.PodTemplateRef.Name != "spare" || buffers[0].Namespace != "default") {
			t.Errorf("%s: %+v", served, buffers)
		}
	}
}

// FuzzParse: whatever the list has, Parse returns an error or buffers that can be asked.
func FuzzParse(f *testing.F) {
	f.Add(must.ReadFile(f, "testdata/karpenter-1.14.json"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		buffers, _ := Parse(data)
		for i := range buffers {
			buffers[i].IsActive()
		}
	})
}
