package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
)

// cluster is what commands read from.
type cluster struct {
	client kubernetes.Interface
	// namespace is the one of the flags or of the kubeconfig.
	namespace string
	// statusNamespace and statusName name the published ConfigMap.
	statusNamespace, statusName string
	server                      *serverTime
	host                        string
}

// connect returns the cluster that the flags name. Nothing is asked of it yet.
func (o *options) connect() (*cluster, error) {
	loader := o.kube.ToRawKubeConfigLoader()
	config, err := o.kube.ToRESTConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is configured: name one by --kubeconfig, by KUBECONFIG or by --server")
	} else if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the namespace: %w", err)
	}
	config.QPS = -1 // a few requests: the server's own priority and fairness is enough
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	server := &serverTime{clock: o.clock}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return timed{server, next} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	c := &cluster{client: client, namespace: namespace, server: server, host: hostOf(config)}
	c.statusNamespace, c.statusName, _ = strings.Cut(o.status, "/")
	return c, nil
}

func hostOf(config *rest.Config) string {
	if u, err := url.Parse(config.Host); err == nil && u.Host != "" {
		return u.Host
	}
	return config.Host
}

// now is the API server's time: the reader's clock may be wrong.
func (c *cluster) now() time.Time { return c.server.now() }

// serverTime is the time by the Date of the last response. Its methods may be called by many goroutines.
type serverTime struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	said  time.Time // zero: nothing was said yet
	at    time.Time // by our clock
}

// timed notes what time a server says that it is.
type timed struct {
	server *serverTime
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t timed) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil {
		if said, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			t.server.note(said)
		}
	}
	return response, err
}

// WrappedRoundTripper lets client-go find what is below.
func (t timed) WrappedRoundTripper() http.RoundTripper { return t.next }

func (s *serverTime) note(said time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said, s.at = said, s.clock.Now()
}

// now is the server's time or, as long as it has said nothing, ours.
func (s *serverTime) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said.IsZero() {
		return s.clock.Now()
	}
	return s.said.Add(s.clock.Since(s.at))
}

// plainly says of an error of the API in one line what could not be done (such as "get pods/web in default"), and what to do about it.
func (c *cluster) plainly(what string, err error) error {
	var netErr net.Error
	var urlErr *url.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not %s", what)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server at %s does not know you: log in again", c.host)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no %s", strings.TrimPrefix(what, "get "))
	case errors.As(err, &urlErr):
		return fmt.Errorf("the API server at %s cannot be reached: %w", c.host, urlErr.Err)
	case errors.As(err, &netErr), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the API server at %s does not answer: %w", c.host, err)
	}
	return fmt.Errorf("could not %s: %w", what, err)
}
