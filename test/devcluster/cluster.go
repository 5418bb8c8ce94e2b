// Package devcluster runs a Kubernetes control plane for tests and trials: etcd, kube-apiserver,
// kube-controller-manager and KWOK as child processes, and a virtual-kubelet node and a simulated cluster autoscaler in
// this process. Everything listens on loopback only.
package devcluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"poolpriority.dev/scheduler/test/devcluster/virtualnode"
)

// Options configure a cluster.
type Options struct {
	// Dir holds the cluster's state and logs. Start creates the directory. If the directory has files of an earlier
	// cluster, Start removes these files.
	Dir string
	// BinDir has the binaries etcd, kube-apiserver, kube-controller-manager and kwok, and kwok-stages.yaml.
	BinDir string
	// Pools are the node pools of VMs.
	Pools []Pool
	// VirtualNode adds a virtual-kubelet node like that of AKS. AddVirtualNode adds further virtual nodes.
	VirtualNode bool
	// Autoscaler configures the simulated cluster autoscaler. If it is nil, the cluster has no autoscaler.
	Autoscaler *AutoscalerOptions
	// APIServerArgs are further arguments of kube-apiserver. ControllerManagerArgs are further arguments of
	// kube-controller-manager.
	APIServerArgs, ControllerManagerArgs []string
	// NodeGrace is the time without renewal of a node's lease after which the Node becomes NotReady. It is at least a
	// second; 0 means Kubernetes' default of 50 s. A shorter NodeGrace makes the nodes renew their leases more often.
	NodeGrace time.Duration
	// GOGC is the variable GOGC of the control plane's processes; empty is Go's default. For a cluster that runs for
	// seconds, a large value saves a fifth of the CPU time. Most of this CPU time is used by the start.
	GOGC string
}

// VirtualNodeName is the name that AKS gives its virtual node.
const VirtualNodeName = virtualnode.Name

// Cluster is a running control plane with its nodes.
type Cluster struct {
	Client     kubernetes.Interface
	Config     *rest.Config // of an administrator
	Autoscaler *Autoscaler
	Pools      []*PoolManager
	// VirtualNode is the node that Options.VirtualNode adds, or nil.
	VirtualNode *virtualnode.Node

	options   Options
	processes []*Process // in the order of their start
	ours      []*Process // our binaries
	cancel    context.CancelFunc
	virtual   []*virtualnode.Node
	ca        []byte
	address   string
	rights    map[string]bool // kustomizations with rights that were applied
	etcd      string          // its URL
	before    content
}

const apiServer, controllerManager = "kube-apiserver", "kube-controller-manager"

// The prefixes of tokens: a random part follows.
const adminToken, managerToken, defaultSchedulerToken = "admin", controllerManager, "kube-scheduler"

// Start starts a cluster. It returns when the API server is ready, all nodes of the pools are ready, and the virtual
// node and the autoscaler of the options run. If Start returns an error, it has stopped all processes.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	return withFreePorts(func() (*Cluster, error) { return start(ctx, options) })
}

func start(ctx context.Context, options Options) (_ *Cluster, err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &Cluster{options: options, cancel: cancel, rights: map[string]bool{}}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	if err := prepareDir(options.Dir); err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	if err := c.startEtcd(ports[0], ports[1]); err != nil {
		return nil, err
	}
	if err := c.startAPIServer(ctx, ports[0], ports[2]); err != nil {
		return nil, err
	}
	if err := c.startControllerManager(); err != nil {
		return nil, err
	}
	if err := c.startKWOK(ctx); err != nil {
		return nil, err
	}
	if err := c.startNodes(ctx); err != nil {
		return nil, err
	}
	return c, c.remember()
}

// markerFile is a file that shows that the directory belongs to a cluster.
const markerFile = ".devcluster"

// prepareDir makes an empty directory. It removes the files of an earlier cluster. If the directory has files but no
// markerFile, it fails.
func prepareDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the cluster's directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, markerFile)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty and no cluster's directory; name another", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing an earlier cluster's files: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the cluster's directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, markerFile), nil, 0o600); err != nil {
		return fmt.Errorf("marking the cluster's directory: %w", err)
	}
	return nil
}

// Dir returns the directory of the cluster's files.
func (c *Cluster) Dir() string { return c.options.Dir }

// KubeConfig returns the path of an administrator's kubeconfig.
func (c *Cluster) KubeConfig() string { return filepath.Join(c.options.Dir, "kubeconfig") }

// PIDs returns the ids of the cluster's child processes, except those of this project's binaries.
func (c *Cluster) PIDs() []int {
	pids := make([]int, len(c.processes))
	for i, p := range c.processes {
		pids[i] = p.PID()
	}
	return pids
}

// Failed returns an error if one of the processes has ended.
func (c *Cluster) Failed() error {
	for _, p := range c.processes {
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops this project's binaries first, then the other processes in the reverse order of their start. It kills the
// other processes, because their data is not kept. After SIGTERM, an API server would wait up to a minute for its
// clients.
func (c *Cluster) Stop() {
	c.stopNodes()
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].Kill()
	}
}

func (c *Cluster) stopNodes() {
	for _, p := range c.ours {
		p.Kill()
	}
	if c.Autoscaler != nil {
		c.Autoscaler.Kill()
	}
	c.cancel()
	for _, n := range c.virtual {
		n.Stop()
	}
}

// RestartAPIServer kills the API server, starts it again, and waits until it is ready. Then it starts
// kube-controller-manager again, so that no later test depends on how its watches came back.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	for _, name := range []string{apiServer, controllerManager} {
		p := c.processes[slices.IndexFunc(c.processes, func(p *Process) bool { return p.name == name })]
		p.Kill()
		if err := p.Restart(); err != nil {
			return err
		}
		if err := c.waitForAPIServer(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// waitForAPIServer waits until the API server reports that it is ready.
func (c *Cluster) waitForAPIServer(ctx context.Context, p *Process) error {
	if err := poll(ctx, startTimeout, p.ended, func() error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return fmt.Errorf("waiting for the API server to be ready: %w", err)
	}
	return nil
}

func (c *Cluster) start(name string, args ...string) (*Process, error) {
	var environment []string
	if c.options.GOGC != "" {
		environment = []string{"GOGC=" + c.options.GOGC}
	}
	p, err := StartProcess(name, filepath.Join(c.options.BinDir, name), c.options.Dir, environment, args...)
	if err != nil {
		return nil, fmt.Errorf("%w (make tools builds it)", err)
	}
	c.processes = append(c.processes, p)
	return p, nil
}

func (c *Cluster) startEtcd(clientPort, peerPort int) error {
	c.etcd = fmt.Sprintf("http://127.0.0.1:%d", clientPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	_, err := c.start("etcd", "--name=default", "--data-dir="+filepath.Join(c.options.Dir, "etcd"), "--unsafe-no-fsync", "--max-txn-ops=10000",
		"--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	return err
}

func (c *Cluster) startAPIServer(ctx context.Context, etcdPort, port int) error {
	key := filepath.Join(c.options.Dir, "service-account.key")
	if _, _, err := keyutil.LoadOrGenerateKeyFile(key); err != nil {
		return fmt.Errorf("writing the ServiceAccount key: %w", err)
	}
	admin, manager, scheduler := newToken(adminToken), newToken(managerToken), newToken(defaultSchedulerToken)
	tokens := filepath.Join(c.options.Dir, "tokens.csv")
	if err := os.WriteFile(tokens, fmt.Appendf(nil, "%s,admin,admin,system:masters\n%s,system:kube-controller-manager,kcm\n%s,system:kube-scheduler,ks\n",
		admin, manager, scheduler), 0o600); err != nil {
		return fmt.Errorf("writing the tokens: %w", err)
	}
	certs := filepath.Join(c.options.Dir, "certs")
	args := append([]string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcdPort),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + certs,
		// Without a default route, the API server finds no address to advertise. It writes no Endpoints, because their
		// addresses must not be loopback.
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=10.0.0.0/16", "--authorization-mode=Node,RBAC", "--token-auth-file=" + tokens,
	}, c.options.APIServerArgs...)
	p, err := c.start(apiServer, args...)
	if err != nil {
		return err
	}
	c.address = fmt.Sprintf("https://127.0.0.1:%d", port)
	// The API server writes a certificate for its address, and the certificate of the authority that signed it.
	if err := poll(ctx, startTimeout, c.Failed, func() error {
		var err error
		if c.ca, err = os.ReadFile(filepath.Join(certs, "apiserver.crt")); err != nil {
			return err
		}
		// The API server may have written only a part of the file.
		if parsed, err := cert.ParseCertsPEM(c.ca); err != nil || len(parsed) < 2 {
			return fmt.Errorf("the file has %d of 2 certificates (%v)", len(parsed), err)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("waiting for the API server's certificate: %w", err)
	}
	c.Config = c.configFor(admin)
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := c.waitForAPIServer(ctx, p); err != nil {
		return err
	}
	if err := c.WriteKubeConfig(c.KubeConfig(), admin); err != nil {
		return err
	}
	if err := c.WriteKubeConfig(filepath.Join(c.options.Dir, "kube-controller-manager.kubeconfig"), manager); err != nil {
		return err
	}
	return c.WriteKubeConfig(c.defaultSchedulerKubeConfig(), scheduler)
}

func (c *Cluster) startControllerManager() error {
	args := c.options.ControllerManagerArgs
	if grace := c.options.NodeGrace; grace != 0 {
		args = append([]string{fmt.Sprintf("--node-monitor-grace-period=%v", grace), fmt.Sprintf("--node-monitor-period=%v", grace/8)}, args...)
	}
	_, err := c.start(controllerManager, append([]string{
		"--kubeconfig=" + filepath.Join(c.options.Dir, "kube-controller-manager.kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port=0", "--use-service-account-credentials=true",
		"--service-account-private-key-file=" + filepath.Join(c.options.Dir, "service-account.key"),
		"--root-ca-file=" + filepath.Join(c.options.Dir, "certs", "apiserver.crt"),
		// With the default of 20 requests a second, it takes a minute to create 1,000 pods.
		"--kube-api-qps=500", "--kube-api-burst=1000", "--controllers=*,-bootstrapsigner,-tokencleaner,-nodeipam",
	}, args...)...)
	return err
}

func (c *Cluster) startKWOK(ctx context.Context) error {
	go wait.UntilWithContext(ctx, c.remindKWOK, 2*time.Second)
	_, err := c.start("kwok", "--kubeconfig="+c.KubeConfig(), "--config="+filepath.Join(c.options.BinDir, "kwok-stages.yaml"),
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector="+kwokAnnotation+"="+kwokFake, fmt.Sprintf("--node-lease-duration-seconds=%d", int(c.leaseDuration()/time.Second)))
	return err
}

// remindKWOK changes pods that have been bound for a while and have not started, so that KWOK looks at them again. KWOK
// 0.8.0 ignores a node's pods until its cache has its own lease of the node (kubernetes-sigs/kwok pull request 1576).
func (c *Cluster) remindKWOK(ctx context.Context) {
	pods, _ := c.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!=,status.phase=Pending"})
	for i := range pods.Items {
		p := &pods.Items[i]
		long := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && time.Since(c.LastTransitionTime.Time) > 5*time.Second
		})
		if !long || p.Status.StartTime != nil {
			continue
		}
		if node, err := c.Client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{}); err == nil && node.Annotations[kwokAnnotation] == kwokFake {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"kwok.x-k8s.io/reminded":"%v"}}}`, time.Now())
			_, _ = c.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}) // it fails: the next time
		}
	}
}

// leaseDuration returns the duration of the nodes' leases, in whole seconds. A node renews its lease four times in this
// duration.
func (c *Cluster) leaseDuration() time.Duration {
	if c.options.NodeGrace == 0 {
		return 40 * time.Second
	}
	return max(time.Second, c.options.NodeGrace.Truncate(time.Second))
}

// configFor returns a client configuration whose only credential is the token.
func (c *Cluster) configFor(token string) *rest.Config {
	return &rest.Config{
		Host: c.address, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		QPS: 500, Burst: 1000,
		// Tests list pods ten times a second. The encoding of these lists takes less CPU time in protobuf than in JSON.
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON},
	}
}

// tokenLifetime is longer than the life of any cluster.
const tokenLifetime = 90 * 24 * time.Hour

// ServiceAccountToken returns a token of the ServiceAccount that stays valid while the cluster runs.
func (c *Cluster) ServiceAccountToken(ctx context.Context, namespace, name string) (string, error) {
	seconds := int64(tokenLifetime / time.Second)
	request, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return request.Status.Token, nil
}

// WriteKubeConfig writes a kubeconfig with the token to the path.
func (c *Cluster) WriteKubeConfig(path, token string) error {
	const name = "devcluster"
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: c.address, CertificateAuthorityData: c.ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
	if err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}

// startTimeout is how long a process may take to be ready, on a busy machine.
const startTimeout = 5 * time.Minute

// poll calls check until it succeeds, the timeout has passed, or fatal returns an error.
func poll(ctx context.Context, timeout time.Duration, fatal, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if err := fatal(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up after %v: %w", timeout, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func newToken(prefix string) string { return prefix + "-" + rand.Text() }
