// Command agent runs in pods of the end-to-end tests. It is the virtual node, or it signals a process of its node.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"poolpriority.dev/scheduler/test/devcluster/virtualnode"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "virtual-node":
		return virtualNode()
	case len(args) == 4 && args[0] == "signal":
		return send(args[1], args[2], args[3])
	}
	return fmt.Errorf("usage: agent virtual-node | agent signal SIGNAL COMMAND HOSTNAME")
}

func virtualNode() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	node := virtualnode.New(client, virtualnode.Options{})
	if err := node.Start(ctx); err != nil {
		return err
	}
	fmt.Println("the virtual node is ready")
	<-ctx.Done()
	node.Stop()
	return nil
}

// send signals the only process of the command in the pod with the host name, and prints the time of the signal (ms of
// Unix time). It needs the node's PID namespace.
func send(name, command, host string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return fmt.Errorf("no signal is called %s", name)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var found []int
	for _, dir := range processes {
		arguments, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue // it has ended
		}
		environment, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue
		}
		first, _, _ := bytes.Cut(arguments, []byte{0})
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && filepath.Base(string(first)) == command && bytes.Contains(append([]byte{0}, environment...), []byte("\x00HOSTNAME="+host+"\x00")) {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		return fmt.Errorf("%d processes are %s in %s, want one: %v", len(found), command, host, found)
	}
	if err := syscall.Kill(found[0], sig); err != nil {
		return err
	}
	fmt.Println(time.Now().UnixMilli())
	return nil
}
