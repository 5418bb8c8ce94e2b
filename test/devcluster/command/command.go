// Package command holds the commands of devcluster.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/test/devcluster"
)

// stateFile is the file, in the directory of the flag --dir, with the ids of the processes that run the cluster.
const stateFile = "devcluster.json"

// clusterDir is the directory of the cluster's files, below the directory of the flag --dir.
const clusterDir = "cluster"

// state is the content of stateFile.
type state struct {
	PID      int   `json:"pid"`
	Children []int `json:"children"`
}

type flags struct {
	dir, bin string
}

// New returns the command devcluster.
func New() *cobra.Command {
	// The libraries that the cluster uses in this process log with klog, which would write to the terminal.
	klog.SetLogger(logr.Discard())
	f := &flags{}
	root := &cobra.Command{
		Use:           "devcluster",
		Short:         "A Kubernetes control plane on this machine, with node pools, a virtual node and a cluster autoscaler",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&f.dir, "dir", ".devcluster", "directory of the cluster's files")
	root.PersistentFlags().StringVar(&f.bin, "bin", "bin", "directory with tools/ and pool-priority-scheduler")
	root.AddCommand(newUp(f), newDown(f), newKubeConfig(f), newPools(f), newDemo(f))
	return root
}

func newDown(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster that devcluster up started",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := readState(f.dir)
			if errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintf(cmd.OutOrStdout(), "No cluster runs in %s.\n", f.dir)
				return nil
			} else if err != nil {
				return err
			}
			return down(cmd.OutOrStdout(), f.dir, s)
		},
	}
}

// down stops the process that runs the cluster. If that process crashed, down also stops the children that still run.
func down(out io.Writer, dir string, s state) error {
	for _, pid := range append([]int{s.PID}, s.Children...) {
		if !alive(pid) {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGTERM)
		for begin := time.Now(); alive(pid); time.Sleep(50 * time.Millisecond) {
			if waited := time.Since(begin); waited > 40*time.Second {
				return fmt.Errorf("process %d does not end", pid)
			} else if waited > 30*time.Second {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the cluster's state: %w", err)
	}
	fmt.Fprintln(out, "Stopped.")
	return nil
}

// alive reports whether the process exists and is a process that devcluster starts. It compares the process's name,
// because the kernel reuses ids.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The format is "PID (name) STATE …". If a process has ended but its parent has not waited for it, its state is Z.
	_, rest, _ := strings.Cut(string(stat), "(")
	name, rest, _ := strings.Cut(rest, ")")
	if strings.HasPrefix(rest, " Z") {
		return false
	}
	// The kernel keeps 15 letters of a name.
	for _, ours := range []string{"devcluster", "etcd", "kube-apiserver", "kube-controller", "kwok", "pool-priority-s", "pool-priority-c"} {
		if name == ours {
			return true
		}
	}
	return false
}

func newKubeConfig(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the cluster's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := kubeConfig(f)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return err
		},
	}
}

func kubeConfig(f *flags) (string, error) {
	path, err := filepath.Abs(filepath.Join(f.dir, clusterDir, "kubeconfig"))
	if err != nil {
		return "", err
	}
	if s, err := readState(f.dir); err != nil || !alive(s.PID) {
		return "", fmt.Errorf("no cluster runs in %s; start one with devcluster up", f.dir)
	}
	return path, nil
}

func newPools(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "pools",
		Short: "Print the cluster's pools: nodes and pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := kubeConfig(f)
			if err != nil {
				return err
			}
			config, err := clientcmd.BuildConfigFromFlags("", path)
			if err != nil {
				return fmt.Errorf("reading the kubeconfig: %w", err)
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("making a client: %w", err)
			}
			return printPools(cmd.Context(), cmd.OutOrStdout(), client)
		},
	}
}

func printPools(ctx context.Context, out io.Writer, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the pods: %w", err)
	}
	podsOn := map[string]int{}
	for i := range pods.Items {
		podsOn[pods.Items[i].Spec.NodeName]++
	}
	var order []string
	nodeCount, podCount := map[string]int{}, map[string]int{}
	for i := range nodes.Items {
		name := poolName(&nodes.Items[i])
		if nodeCount[name] == 0 {
			order = append(order, name)
		}
		nodeCount[name]++
		podCount[name] += podsOn[nodes.Items[i].Name]
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POOL\tNODES\tPODS")
	for _, name := range order {
		fmt.Fprintf(w, "%s\t%d\t%d\n", name, nodeCount[name], podCount[name])
	}
	fmt.Fprintf(w, "(pending)\t\t%d\n", podsOn[""])
	return w.Flush()
}

func poolName(node *corev1.Node) string {
	if name, ok := node.Labels[devcluster.AgentPoolLabel]; ok {
		return name
	}
	return node.Name
}

func readState(dir string) (state, error) {
	var s state
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("reading %s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

func writeState(dir string, s state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, stateFile), data, 0o600)
}
