package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

var (
	// ofNodes matches the etcd keys of nodes, of their leases, of events, and of the autoscaler's status.
	ofNodes = regexp.MustCompile(`^/registry/(minions/|events/|leases/kube-node-lease/|configmaps/kube-system/cluster-autoscaler-status$)`)
	// ofControlPlane matches the keys of objects that the control plane itself creates, and may renew at any time.
	ofControlPlane = regexp.MustCompile(`^/registry/(serviceaccounts/kube-|leases/kube-system/apiserver-|` +
		`clusterroles/(admin|edit|view)$|servicecidrs/kubernetes$|configmaps/(default|kube-[^/]+)/kube-root-ca\.crt$)`)
)

// quiet is a time. After the last change by Clear, the control plane must write nothing for this time.
const quiet = 300 * time.Millisecond

// Clear stops this project's binaries, the nodes and the autoscaler. It restores etcd and the directory to their
// contents after the cluster's start, but without nodes. It fails if processes were added since the start, or if the
// control plane keeps writing.
func (c *Cluster) Clear(ctx context.Context) error {
	c.stopNodes()
	if len(c.processes) != c.before.processes {
		return fmt.Errorf("the cluster has %d processes, and had %d at the start", len(c.processes), c.before.processes)
	}
	files, err := os.ReadDir(c.options.Dir)
	if err != nil {
		return fmt.Errorf("reading the cluster's directory: %w", err)
	}
	for _, f := range files {
		if !c.before.files[f.Name()] {
			if err := os.RemoveAll(filepath.Join(c.options.Dir, f.Name())); err != nil {
				return fmt.Errorf("clearing the cluster's directory: %w", err)
			}
		}
	}
	if err := poll(ctx, 10*time.Second, c.Failed, func() error {
		changed, err := c.restore()
		if err == nil && len(changed) > 0 {
			time.Sleep(quiet)
			err = fmt.Errorf("other than at the start were %q", changed)
		}
		return err
	}); err != nil {
		return fmt.Errorf("clearing the cluster: %w", err)
	}
	return nil
}

// Reuse returns a new cluster on the control plane of a cleared cluster. The new cluster has the nodes and the
// autoscaler that the options describe.
func (c *Cluster) Reuse(ctx context.Context, options Options) (*Cluster, error) {
	options.Dir = c.options.Dir
	ctx, cancel := context.WithCancel(ctx)
	next := &Cluster{Client: c.Client, Config: c.Config, options: options, processes: c.processes, cancel: cancel, ca: c.ca, address: c.address,
		rights: map[string]bool{}, etcd: c.etcd, before: c.before}
	if err := next.startNodes(ctx); err != nil {
		next.Stop()
		return nil, err
	}
	return next, nil
}

// content is the content of a cluster's directory and etcd after the cluster's start, without nodes.
type content struct {
	processes int
	files     map[string]bool   // in its directory
	objects   map[string][]byte // by their keys in etcd
}

// remember records the present content for Clear.
func (c *Cluster) remember() error {
	files, err := os.ReadDir(c.options.Dir)
	if err != nil {
		return fmt.Errorf("reading the cluster's directory: %w", err)
	}
	c.before = content{processes: len(c.processes), files: map[string]bool{}}
	for _, f := range files {
		c.before.files[f.Name()] = true
	}
	if c.before.objects, err = c.readObjects(); err != nil {
		return err
	}
	maps.DeleteFunc(c.before.objects, func(key string, _ []byte) bool { return ofNodes.MatchString(key) })
	return nil
}

// readObjects returns the content of etcd, except the objects that the control plane itself makes.
func (c *Cluster) readObjects() (map[string][]byte, error) {
	var got struct {
		KVs []struct{ Key, Value []byte }
	}
	if err := c.askEtcd("range", map[string][]byte{"key": []byte("/registry/"), "range_end": []byte("/registry0")}, &got); err != nil {
		return nil, err
	}
	objects := map[string][]byte{}
	for _, kv := range got.KVs {
		if !ofControlPlane.Match(kv.Key) {
			objects[string(kv.Key)] = kv.Value
		}
	}
	return objects, nil
}

// restore undoes the changes since the start, and returns the keys of the changed objects. It sends a request for each
// change, because watches expect a revision of its own for each: if several changes had the same one, a watch that ended
// among them would go on after the last, and informers would keep deleted objects for ever.
func (c *Cluster) restore() ([]string, error) {
	objects, err := c.readObjects()
	if err != nil {
		return nil, err
	}
	var changed []string
	for key := range objects {
		if _, was := c.before.objects[key]; !was {
			changed = append(changed, key)
			err = errors.Join(err, c.askEtcd("deleterange", map[string][]byte{"key": []byte(key)}, &struct{}{}))
		}
	}
	for key, value := range c.before.objects {
		if !bytes.Equal(objects[key], value) {
			changed = append(changed, key)
			err = errors.Join(err, c.askEtcd("put", map[string][]byte{"key": []byte(key), "value": value}, &struct{}{}))
		}
	}
	return changed, err
}

// askEtcd sends a request to etcd as JSON.
func (c *Cluster) askEtcd(method string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding a request to etcd: %w", err)
	}
	response, err := http.Post(c.etcd+"/v3/kv/"+method, "application/json", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("asking etcd: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd's answer to %s is %s", method, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("decoding etcd's answer: %w", err)
	}
	return nil
}
