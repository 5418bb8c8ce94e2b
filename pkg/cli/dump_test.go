package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/must"
)

// secret is a value that a dump must not contain.
const secret = "hunter2"

func secrets(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "PASSWORD", Value: secret}, {Name: "OTHER", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "key"}}}}
	c.Command, c.Args = []string{"sh", "-c", "echo " + secret}, []string{"--password=" + secret}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{secret}}}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/?" + secret, HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: secret}}}}}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{secret}}}}
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: secret}}}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Args: []string{secret}}}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d", VolumeAttributes: map[string]string{"key": secret}}}}}
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.9.8.7", Hostnames: []string{secret}}}
	p.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = secret
	p.Annotations["example.com/token"] = secret
	p.Status.PodIP = "10.9.8.6"
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: secret}}
}

func dumped(t *testing.T) []runtime.Object {
	namespace := "pool-priority-system"
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": secret}}
	}
	scheduler := &appsv1.Deployment{ObjectMeta: meta("pool-priority-scheduler")}
	scheduler.Spec.Template.Spec.Containers = []corev1.Container{{Name: "scheduler", Args: []string{"--v=2"}, Env: []corev1.EnvVar{{Name: "PROXY", Value: "http://user:" + secret + "@proxy"}}}}
	scheduler.Spec.Template.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config-7f2"}}}}}
	leader := pod("pool-priority-scheduler-6c9f7d5b8-4xk2p", time.Hour)
	leader.Namespace = namespace
	leader.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "scheduler", RestartCount: 1}}
	event := func(name, kind, uid string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, UID: types.UID(uid)}, Message: "event of " + name}
	}
	objects := []runtime.Object{
		scheduler, &appsv1.Deployment{ObjectMeta: meta("somebody-elses")}, leader,
		&corev1.ConfigMap{ObjectMeta: meta("config-7f2"), Data: map[string]string{"config.yaml": "the configuration"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status"}, Data: map[string]string{"status": "the autoscaler's"}},
		&coordinationv1.Lease{ObjectMeta: meta("pool-priority-scheduler")}, &corev1.Secret{ObjectMeta: meta("token"), Data: map[string][]byte{"token": []byte(secret)}},
		event("web-5", "Pod", "web-5"), event("stranger", "Pod", "stranger"), event("node-1", "Node", "node-1"),
		pod("talkative", time.Minute, reported(time.Minute, sentenceOf(t, "PoolGrowing")), secrets),
	}
	return append(objects, crowd(t)...)
}

func TestDump(t *testing.T) {
	w := growing(t)
	s := newServer(t, append(dumped(t), w.published(5*time.Second))...)
	for _, n := range w.nodes {
		n.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": secret}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.9.8.5"}}
		s.put(n)
	}
	out := s.run("dump", "-")
	for _, want := range []string{
		"# status.txt", "the autoscaler's", "the configuration", "# nodes.yaml", "name: talkative", "name: cart-1", "event of web-5", "event of node-1", "kind: LeaseList", "kind: Deployment",
		"log of scheduler", "previous.log", "--v=2", "PASSWORD", "poolpriority.dev/decision", "NOT READ: there is no configmaps/cluster-autoscaler-priority-expander in kube-system",
		"Kubernetes v1.35.4", "system is growing",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the dump", want)
		}
	}
	for _, not := range []string{secret, "10.9.8", "last-applied", "somebody-elses", "event of stranger", "kind: Secret", "managedFields"} {
		if i := strings.Index(out, not); i >= 0 {
			t.Errorf("the dump has %q: %s", not, out[max(0, i-200):min(len(out), i+100)])
		}
	}
	if t.Failed() && testing.Verbose() {
		t.Log(out)
	}
}

// TestDumpTargets: the same files are in an archive and in a directory, and nothing is overwritten.
func TestDumpTargets(t *testing.T) {
	s := newServer(t, append(dumped(t), growing(t).published(0))...)
	dir := t.TempDir()
	archived, put := filepath.Join(dir, "dump.tar.gz"), filepath.Join(dir, "dump")
	for _, target := range []string{archived, put} {
		if out := s.run("dump", target); !strings.Contains(out, "Written: "+target+"; 1 part could not be read, see report.txt.\n") || strings.Contains(out, "error") {
			t.Error(out)
		}
		if out := s.run("dump", target); !strings.Contains(out, "name another") || !strings.Contains(out, "(exit status 2)") {
			t.Error(out)
		}
	}
	var inDir []string
	must.NoError(t, filepath.WalkDir(put, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			inDir = append(inDir, "dump"+filepath.ToSlash(strings.TrimPrefix(path, put)))
		}
		return err
	}))
	f := must.Get(os.Open(archived))(t)
	defer f.Close()
	zip := must.Get(gzip.NewReader(f))(t)
	var inArchive []string
	for r := tar.NewReader(zip); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		inArchive = append(inArchive, header.Name)
	}
	slices.Sort(inArchive)
	if !slices.Equal(inArchive, inDir) || len(inDir) < 12 || !slices.Contains(inDir, "dump/report.txt") {
		t.Errorf("in the archive %q, in the directory %q", inArchive, inDir)
	}
}

// TestDumpWithLess: the report lists what may not be read, and the dump contains the rest.
func TestDumpWithLess(t *testing.T) {
	for name, forbidden := range map[string][]string{
		"a namespace": {"get /api/v1/pods", "get /api/v1/nodes", "get /apis", "get /api/v1/namespaces/pool-priority-system", "get /api/v1/namespaces/kube-system", "get /version"},
		"nothing":     {"get "},
	} {
		s := newServer(t, append(dumped(t), growing(t).published(0))...)
		s.forbid(forbidden...)
		out := s.run("dump", "-")
		want := map[string]string{"a namespace": "name: talkative", "nothing": "these pods in default                                        NOT READ: you may not list pods in default"}[name]
		for _, want := range []string{want, "NOT READ: you may not list nodes", "NOT READ: you may not list pods in all namespaces", "(you may not read its version)"} {
			if name == "nothing" || !strings.Contains(want, "version") {
				if !strings.Contains(out, want) {
					t.Errorf("with %s: no %q in %s", name, want, out)
				}
			}
		}
		if strings.Contains(out, "exit status") {
			t.Errorf("with %s: %s", name, out)
		}
	}
}
