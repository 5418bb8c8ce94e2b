package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
)

// cluster reads objects for commands.
type cluster struct {
	client kubernetes.Interface
	// namespace is the namespace that the flags or the kubeconfig select.
	namespace string
	// statusNamespace and statusName name the published ConfigMap.
	statusNamespace, statusName string
	*serverTime
	host string
}

// connect returns the cluster that the flags name. It sends no request.
func (o *options) connect() (*cluster, error) { return o.connectAs("") }

// connectAs returns the cluster that the flags name. If user is not empty, the requests impersonate the user.
func (o *options) connectAs(user string) (*cluster, error) {
	config, err := o.kube.ToRESTConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is configured: set --kubeconfig, KUBECONFIG or --server")
	} else if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	namespace, _, err := o.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("reading the namespace: %w", err)
	}
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
	}
	config.QPS = -1                           // no client-side limit: the commands send few requests
	config.WarningHandler = rest.NoWarnings{} // they are about pods of dry runs, which nobody creates
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	server := &serverTime{clock: o.clock}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		server.next = next
		return server
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	c := &cluster{client: client, namespace: namespace, serverTime: server, host: client.CoreV1().RESTClient().Get().URL().Host}
	c.statusNamespace, c.statusName, _ = strings.Cut(o.status, "/")
	return c, nil
}

// serverTime computes the API server's time from the Date header of its last response, because the local clock may be
// wrong.
type serverTime struct {
	next  http.RoundTripper
	clock clock.PassiveClock
	ahead atomic.Int64 // nanoseconds by which the server's clock is ahead of the local clock
}

// RoundTrip implements http.RoundTripper.
func (s *serverTime) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(request)
	if err == nil {
		if said, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			s.ahead.Store(int64(said.Sub(s.clock.Now())))
		}
	}
	return response, err
}

// now returns the API server's time. Before the API server's first response, it returns the local time.
func (s *serverTime) now() time.Time {
	return s.clock.Now().Add(time.Duration(s.ahead.Load())).UTC()
}

// get reads the object with the given name into object. The Go type of object determines the kind. For a cluster-scoped
// kind, namespace is "".
func (c *cluster) get(ctx context.Context, object runtime.Object, namespace, name string) error {
	resource, request := c.request(object, namespace)
	what := "get " + resource + "/" + name
	if namespace != "" {
		what += " in " + namespace
	}
	return c.plainly(what, request.Name(name).Do(ctx).Into(object))
}

// list reads the objects that the options select into list. The Go type of list determines the kind. For all
// namespaces, namespace is "".
func (c *cluster) list(ctx context.Context, list runtime.Object, namespace string, options metav1.ListOptions) error {
	resource, request := c.request(list, namespace)
	what := "list " + resource
	if resource != "nodes" {
		what += inNamespace(namespace)
	}
	return c.plainly(what, request.VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(list))
}

func inNamespace(namespace string) string { return " in " + cmp.Or(namespace, "all namespaces") }

// request returns the name of the resource for the object's Go type, and a GET request for that resource. object may be
// a list.
func (c *cluster) request(object runtime.Object, namespace string) (string, *rest.Request) {
	kind := kindOfObject(object)
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	root := "/apis"
	if kind.Group == "" {
		root = "/api"
	}
	path := rest.DefaultVersionedAPIPath(root, kind.GroupVersion())
	return resource.Resource, c.client.CoreV1().RESTClient().Get().AbsPath(path).NamespaceIfScoped(namespace, namespace != "").Resource(resource.Resource)
}

// kindOfObject returns the kind of the object. The object's Go type must be in client-go's scheme.
func kindOfObject(object runtime.Object) schema.GroupVersionKind {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	utilruntime.Must(err)
	return kinds[0]
}

// plainError is an error with a text of one line for the user.
type plainError struct {
	text  string
	cause error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.cause }

// plainly converts the error of a request to the API server into a plainError. action is the request in words, such as
// "get pods/web in default".
func (c *cluster) plainly(action string, err error) error {
	var netErr net.Error
	var urlErr *url.Error
	text := ""
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		text = "you may not " + action
	case apierrors.IsUnauthorized(err):
		text = fmt.Sprintf("the API server at %s rejects your credentials: log in again", c.host)
	case apierrors.IsNotFound(err):
		text = "there is no " + strings.TrimPrefix(action, "get ")
	case errors.As(err, &urlErr):
		text = fmt.Sprintf("the API server at %s cannot be reached: %v", c.host, urlErr.Err)
	case errors.As(err, &netErr), errors.Is(err, context.DeadlineExceeded):
		text = fmt.Sprintf("the API server at %s does not answer: %v", c.host, err)
	default:
		text = fmt.Sprintf("could not %s: %v", action, err)
	}
	return &plainError{text, err}
}
