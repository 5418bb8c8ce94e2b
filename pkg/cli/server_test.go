package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"poolpriority.dev/scheduler/test/must"
)

// server is a fake API server with objects. Its clock stands still.
type server struct {
	*testing.T
	url string

	mu        sync.Mutex
	now       time.Time
	objects   map[string]runtime.Object                // by their paths
	forbidden []string                                 // prefixes of "verb path"
	patched   func(as string) *apierrors.StatusError   // answers a patch by the impersonated user; nil lets it pass
	created   func(*corev1.Pod) *apierrors.StatusError // changes a new pod, as admission does, or refuses it; nil: the user may not create pods
	asked     []string
}

// date is the current time in the tests.
var date = time.Date(2026, 11, 21, 14, 43, 8, 0, time.UTC)

func newServer(t *testing.T, objects ...runtime.Object) *server {
	s := &server{T: t, now: date, objects: map[string]runtime.Object{}}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	s.url = h.URL
	t.Setenv("KUBECONFIG", "/dev/null")
	for _, object := range objects {
		s.put(object)
	}
	return s
}

func (s *server) forbid(what ...string) { s.forbidden = append(s.forbidden, what...) }

// put creates or replaces an object.
func (s *server) put(object runtime.Object) {
	s.Helper()
	object = object.DeepCopyObject()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	must.NoError(s, err)
	object.GetObjectKind().SetGroupVersionKind(kinds[0])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[pathOf(kinds[0], object)] = object
}

func pathOf(kind schema.GroupVersionKind, object runtime.Object) string {
	m, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return collection(resource, m.GetNamespace()) + "/" + m.GetName()
}

func collection(r schema.GroupVersionResource, namespace string) string {
	prefix := "/api/" + r.Version
	if r.Group != "" {
		prefix = "/apis/" + r.Group + "/" + r.Version
	}
	if namespace != "" {
		prefix += "/namespaces/" + namespace
	}
	return prefix + "/" + r.Resource
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	w.Header().Set("Date", s.now.UTC().Format(http.TimeFormat))
	if r.Method == http.MethodPost {
		s.serveCreate(w, r)
		return
	}
	asked := "get " + r.URL.Path
	s.asked = append(s.asked, asked)
	refused := slices.ContainsFunc(s.forbidden, func(what string) bool { return strings.HasPrefix(asked+"$", what) })
	object, found := s.objects[r.URL.Path]
	const karpenter = "/apis/karpenter.sh/"
	served := !strings.HasPrefix(r.URL.Path, karpenter) || slices.ContainsFunc(slices.Collect(maps.Keys(s.objects)), func(path string) bool { return strings.HasPrefix(path, karpenter) })
	s.mu.Unlock()
	switch {
	case refused:
		fail(w, apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", fmt.Errorf("no right")))
	case r.Method == http.MethodPatch && s.patched != nil && s.patched(r.Header.Get("Impersonate-User")) != nil:
		fail(w, s.patched(r.Header.Get("Impersonate-User")))
	case r.URL.Path == "/version":
		answer(w, map[string]string{"major": "1", "minor": "35", "gitVersion": "v1.35.4"})
	case found:
		answer(w, object)
	case !served:
		http.NotFound(w, r)
	case strings.HasSuffix(r.URL.Path, "/log"):
		fmt.Fprintf(w, "log of %s\n", r.URL.Query().Get("container"))
	default:
		s.serveList(w, r)
	}
}

// serveCreate answers the dry run of a new pod.
func (s *server) serveCreate(w http.ResponseWriter, r *http.Request) {
	defer s.mu.Unlock()
	p := &corev1.Pod{}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), data, p)
	}
	if err != nil || r.URL.Query().Get("dryRun") != metav1.DryRunAll || p.GenerateName == "" {
		s.Errorf("POST %s: %v", r.URL, err)
	}
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(`User "u" cannot create resource "pods" in API group "" in the namespace "n"`))
	if s.created != nil {
		refused = s.created(p)
	}
	if refused != nil {
		fail(w, refused)
		return
	}
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: kindPod}
	answer(w, p)
}

// resources are the resources that the server lists.
var resources = []string{"pods", "nodes", "events", "configmaps", "deployments", "leases", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs", "networkpolicies", "namespaces", "serviceaccounts"}

func (s *server) serveList(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	resource := parts[len(parts)-1]
	if !slices.Contains(resources, resource) {
		fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, resource))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []runtime.Object{}
	for path, object := range s.objects {
		prefix, rest, ok := strings.Cut(path, "/"+resource+"/")
		all := !strings.Contains(r.URL.Path, "/namespaces/") && strings.HasPrefix(prefix, strings.TrimSuffix(r.URL.Path, "/"+resource))
		if ok && !strings.Contains(rest, "/") && (all || prefix+"/"+resource == r.URL.Path) && selected(object, r) {
			items = append(items, object)
		}
	}
	slices.SortFunc(items, func(a, b runtime.Object) int { return strings.Compare(nameOf(a), nameOf(b)) })
	version := strings.TrimPrefix(strings.TrimPrefix(strings.Split(r.URL.Path, "/namespaces/")[0], "/apis/"), "/api/")
	version = strings.TrimSuffix(version, "/"+resource)
	answer(w, map[string]any{"kind": listKinds[resource], "apiVersion": version, "metadata": map[string]string{"resourceVersion": "1"}, "items": items})
}

var listKinds = map[string]string{"pods": "PodList", "nodes": "NodeList", "events": "EventList", "configmaps": "ConfigMapList", "deployments": "DeploymentList", "leases": "LeaseList",
	"replicasets": "ReplicaSetList", "statefulsets": "StatefulSetList", "daemonsets": "DaemonSetList", "jobs": "JobList", "cronjobs": "CronJobList", "networkpolicies": "NetworkPolicyList", "namespaces": "NamespaceList", "serviceaccounts": "ServiceAccountList"}

func nameOf(object runtime.Object) string {
	m, _ := meta.Accessor(object)
	return m.GetNamespace() + "/" + m.GetName()
}

// selected reports whether the object matches the selectors of the request.
func selected(object runtime.Object, r *http.Request) bool {
	m, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || !byLabel.Matches(labels.Set(m.GetLabels())) {
		return false
	}
	set := fields.Set{"metadata.name": m.GetName()}
	switch x := object.(type) {
	case *corev1.Pod:
		set["spec.schedulerName"], set["spec.nodeName"], set["status.phase"] = x.Spec.SchedulerName, x.Spec.NodeName, string(x.Status.Phase)
	case *corev1.Event:
		set["involvedObject.kind"], set["involvedObject.uid"] = x.InvolvedObject.Kind, string(x.InvolvedObject.UID)
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	return err == nil && byField.Matches(set)
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(object); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func fail(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}
