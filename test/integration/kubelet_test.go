package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

// kubelet stands in for what runs our own pods: each is a process of the binary that it names, with the arguments, the environment, the files
// and the rights that it has, and the API server is told how that is. A process that ends is started again, from the same files. The pods
// need no node for it, and have none.
type kubelet struct {
	*env
	namespace string
	// end kills the processes and runs nothing any more.
	end func()

	mu   sync.Mutex
	pods map[types.UID]*runningPod
	logs []string // the files, also those of pods that are gone
}

type runningPod struct {
	name      string
	process   *devcluster.Process
	probe     string // the URL that says whether it is ready
	restarts  int32
	startedAt time.Time
	shown     corev1.PodStatus
}

// kubelet runs the pods of the namespace from now on, until the test ends.
func (e *env) kubelet(namespace string) *kubelet {
	k := &kubelet{env: e, namespace: namespace, pods: map[types.UID]*runningPod{}}
	ctx, cancel := context.WithCancel(e.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			k.sync(ctx)
		}
	}()
	k.end = func() {
		cancel()
		<-done
		for _, p := range k.pods {
			p.process.Kill()
		}
	}
	e.Cleanup(k.end)
	return k
}

// sync brings the processes in line with the pods, and the pods' statuses with the processes.
func (k *kubelet) sync(ctx context.Context) {
	list, err := k.Client.CoreV1().Pods(k.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	there := map[types.UID]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp != nil || suite.Over(pod) {
			continue
		}
		there[pod.UID] = true
		p := k.pods[pod.UID]
		if p == nil {
			if p, err = k.start(ctx, pod); err != nil {
				k.Logf("pod %s cannot be started: %v", pod.Name, err)
				continue
			}
			k.pods[pod.UID] = p
			k.logs = append(k.logs, p.process.Log())
		}
		k.tell(ctx, pod, p)
	}
	for uid, p := range k.pods {
		if !there[uid] {
			delete(k.pods, uid)
			go p.process.Stop()
		}
	}
}

// start starts the pod's process.
func (k *kubelet) start(ctx context.Context, pod *corev1.Pod) (*runningPod, error) {
	dir := filepath.Join(k.Dir(), pod.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	token, err := k.ServiceAccountToken(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return nil, err
	}
	kubeConfig := filepath.Join(dir, "kubeconfig")
	if err := k.WriteKubeConfig(kubeConfig, token); err != nil {
		return nil, err
	}
	container := &pod.Spec.Containers[0]
	args := append([]string{}, container.Args...)
	for _, mount := range container.VolumeMounts {
		for i := range pod.Spec.Volumes {
			if volume := &pod.Spec.Volumes[i]; volume.Name == mount.Name {
				if err := k.write(ctx, pod, volume, dir, kubeConfig); err != nil {
					return nil, err
				}
			}
		}
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], mount.MountPath, dir)
		}
	}
	port, err := devcluster.FreePort()
	if err != nil {
		return nil, err
	}
	p := &runningPod{name: pod.Name, startedAt: time.Now()}
	binary := devcluster.SchedulerName // the image's entry point
	if len(container.Command) > 0 {
		binary = path.Base(container.Command[0])
		args = append(container.Command[1:len(container.Command):len(container.Command)], args...)
		args = append(args, "--kubeconfig="+kubeConfig)
		if container.ReadinessProbe != nil {
			args = append(args, fmt.Sprintf("--health-address=127.0.0.1:%d", port), "--metrics-address=0")
			p.probe = fmt.Sprintf("http://127.0.0.1:%d/readyz", port)
		}
	} else {
		args = append(args, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--authentication-kubeconfig="+kubeConfig, "--authorization-kubeconfig="+kubeConfig)
		p.probe = fmt.Sprintf("https://127.0.0.1:%d/readyz", port)
	}
	var environment []string
	for _, v := range container.Env {
		if v.ValueFrom != nil && v.ValueFrom.FieldRef.FieldPath == "metadata.namespace" {
			v.Value = pod.Namespace
		}
		environment = append(environment, v.Name+"="+v.Value)
	}
	p.process, err = devcluster.StartProcess(pod.Name, filepath.Join(*bin, binary), k.Dir(), environment, args...)
	return p, err
}

// write writes the volume's files. Of a scheduler's configuration the connection is added, which it has from its ServiceAccount in a pod.
func (k *kubelet) write(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, dir, kubeConfig string) error {
	files := map[string]string{}
	switch {
	case volume.DownwardAPI != nil:
		for _, item := range volume.DownwardAPI.Items {
			key := strings.TrimSuffix(strings.TrimPrefix(item.FieldRef.FieldPath, "metadata.annotations['"), "']")
			files[item.Path] = pod.Annotations[key]
		}
	case volume.ConfigMap != nil:
		cm, err := k.Client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		files = cm.Data
	}
	for name, text := range files {
		if strings.Contains(text, "kind: KubeSchedulerConfiguration") {
			data, err := devcluster.WithKubeConfig([]byte(text), kubeConfig)
			if err != nil {
				return err
			}
			text = string(data)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// anyCertificate trusts whoever serves the probes, as kubelets do.
var anyCertificate = &http.Client{Timeout: time.Second, Transport: &http.Transport{
	DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // a probe
}}

// tell tells the API server how the pod is, and starts it again if it has ended.
func (k *kubelet) tell(ctx context.Context, pod *corev1.Pod, p *runningPod) {
	status := corev1.PodStatus{Phase: corev1.PodRunning}
	container := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, RestartCount: p.restarts}
	select {
	case <-p.process.Done():
		ended := &corev1.ContainerStateTerminated{ExitCode: 1}
		if data, err := os.ReadFile(p.process.Log()); err == nil {
			ended.Message = suite.Tail(data, 2000)
		}
		switch {
		case p.process.ExitCode() == 0 && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways:
			ended.ExitCode = 0
			status.Phase, container.State.Terminated = corev1.PodSucceeded, ended
		case pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
			status.Phase, container.State.Terminated = corev1.PodFailed, ended
		default:
			container.State.Waiting, container.LastTerminationState.Terminated = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}, ended
			if time.Since(p.startedAt) > time.Second {
				p.startedAt = time.Now()
				p.restarts++
				if err := p.process.Restart(); err != nil {
					k.Errorf("pod %s cannot be started again: %v", pod.Name, err)
				}
			}
		}
	default:
		container.State.Running = &corev1.ContainerStateRunning{}
		if p.probe != "" {
			response, err := anyCertificate.Get(p.probe)
			if err == nil {
				_ = response.Body.Close()
				container.Ready = response.StatusCode == http.StatusOK
			}
		}
	}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if container.Ready {
		ready.Status = corev1.ConditionTrue
	}
	status.Conditions, status.ContainerStatuses = []corev1.PodCondition{ready}, []corev1.ContainerStatus{container}
	if equality.Semantic.DeepEqual(status, p.shown) {
		return
	}
	p.shown = *status.DeepCopy()
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = metav1.Now()
	}
	pod = pod.DeepCopy()
	pod.Status.Phase, pod.Status.Conditions, pod.Status.ContainerStatuses = status.Phase, status.Conditions, status.ContainerStatuses
	if _, err := k.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		p.shown = corev1.PodStatus{} // once more
	}
}

// rolledOut waits until both Deployments have all their replicas, new and ready, and no other pods.
func (k *kubelet) rolledOut(name string) {
	k.Helper()
	k.Eventually(60*time.Second, func() string {
		for _, deployment := range []string{name + "-scheduler", name + "-controller"} {
			d, err := k.Client.AppsV1().Deployments(k.namespace).Get(k.ctx, deployment, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas || s.AvailableReplicas != *d.Spec.Replicas {
				return fmt.Sprintf("%s: %d replicas, %d of them new, %d available\n%s", deployment, s.Replicas, s.UpdatedReplicas, s.AvailableReplicas, k.said())
			}
		}
		return ""
	})
}

// said is the end of the logs of the pods that are not ready.
func (k *kubelet) said() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	for _, p := range k.pods {
		data, err := os.ReadFile(p.process.Log())
		if err == nil && len(p.shown.ContainerStatuses) == 1 && !p.shown.ContainerStatuses[0].Ready {
			fmt.Fprintf(&b, "%s, started %d times:\n%s\n", p.name, p.restarts+1, suite.Tail(data, 1500))
		}
	}
	return b.String()
}

// clean fails the test if a pod was refused something, or crashed, up to now; each log is looked at once.
func (k *kubelet) clean() {
	k.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, log := range k.logs {
		data, err := os.ReadFile(log)
		if err != nil {
			k.Error(err)
		}
		for _, line := range strings.Split(string(data), "\n") {
			if strings.Contains(line, "forbidden") || strings.Contains(line, "panic") {
				k.Errorf("%s has: %s", filepath.Base(log), line)
			}
		}
	}
	k.logs = nil
}
