package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// redrawInterval is the shortest time between two pictures, and watchRetry how long a watch that ended or failed is left alone.
	redrawInterval, watchRetry = time.Second, 2 * time.Second
	// pollInterval is how often is read what may not be watched.
	pollInterval = 5 * time.Second
)

// shown is what a command prints.
type shown struct {
	object any
	// key is what tells it from what was printed before.
	key   any
	names []string
	text  func(io.Writer)
}

// watched begins to watch something that is printed.
type watched func(ctx context.Context) (watch.Interface, error)

func (c *cluster) watchStatus(ctx context.Context) (watch.Interface, error) {
	return c.client.CoreV1().ConfigMaps(c.statusNamespace).Watch(ctx, named(c.statusName))
}

func (c *cluster) watchPod(namespace, name string) watched {
	return func(ctx context.Context) (watch.Interface, error) {
		return c.client.CoreV1().Pods(namespace).Watch(ctx, named(name))
	}
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

// follow prints what get returns, as show shows it. With --watch it goes on until the context ends: on a terminal in place, otherwise once for
// each change.
func follow[T any](ctx context.Context, o *options, c *cluster, watches []watched, get func(context.Context) (T, error), show func(T, time.Time) (shown, error)) error {
	data, err := get(ctx)
	if err != nil {
		return err
	}
	if !o.watch {
		s, err := show(data, c.now())
		if err != nil {
			return err
		}
		return o.print(s.object, s.names, s.text)
	}
	changed := make(chan struct{}, 1)
	for _, w := range watches {
		go o.listen(ctx, w, changed)
	}
	terminal := o.isText() && o.isTerminal(o.Out)
	var last []byte
	for {
		s, err := show(data, c.now())
		if err != nil {
			return err
		}
		if terminal {
			err = o.redraw(s)
		} else {
			last, err = o.printIfNew(s, last)
		}
		if err != nil {
			return err
		}
		if again, err := o.wait(ctx, changed, terminal); err != nil {
			return err
		} else if !again {
			continue
		}
		fresh, err := get(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !terminal:
			return err
		case err == nil: // on a terminal, what is shown stays while it cannot be read
			data = fresh
		}
	}
}

// wait waits until it is time to print again, and reports whether something changed: if not, only time has passed.
func (o *options) wait(ctx context.Context, changed <-chan struct{}, terminal bool) (bool, error) {
	select { // nothing is read more often than that
	case <-ctx.Done():
		return false, ctx.Err()
	case <-o.clock.After(redrawInterval):
	}
	if terminal {
		select {
		case <-changed:
			return true, nil
		default:
			return false, nil
		}
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-changed:
		return true, nil
	}
}

// listen pokes when what is watched changes, again and again until the context ends.
func (o *options) listen(ctx context.Context, begin watched, changed chan<- struct{}) {
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		retry := watchRetry
		w, err := begin(ctx)
		switch {
		case apierrors.IsForbidden(err):
			retry = pollInterval
		case err == nil:
			for range w.ResultChan() {
				poke()
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
		case <-o.clock.After(retry):
			poke()
		}
	}
}

// redraw prints it in the place of what was printed before.
func (o *options) redraw(s shown) error {
	var b bytes.Buffer
	s.text(&b)
	const home, clearLine, clearRest = "\x1b[H", "\x1b[K", "\x1b[J"
	picture := home + string(bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(clearLine+"\n"))) + clearRest
	if _, err := io.WriteString(o.Out, picture); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// printIfNew prints it unless it is what was printed last, and returns what tells it from others.
func (o *options) printIfNew(s shown, last []byte) ([]byte, error) {
	key, err := json.Marshal(s.key)
	if err != nil {
		return nil, fmt.Errorf("encoding the output: %w", err)
	}
	if bytes.Equal(key, last) {
		return last, nil
	}
	if last != nil && o.isText() {
		fmt.Fprintln(o.Out)
	}
	return key, o.print(s.object, s.names, s.text)
}
