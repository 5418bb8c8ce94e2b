package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
)

// verdict says whether our scheduler did as it should.
func (e *experiment) verdict(s *show, o Options) error {
	got, violations := s.referee.Judge()
	parts := make([]string, len(e.tiers))
	same := true
	for i, t := range e.tiers {
		parts[i] = fmt.Sprintf("%s %d", t.Name, got[i])
		same = same && got[i] == e.want[i]
	}
	for _, v := range violations {
		fmt.Fprintln(o.Out, "WRONG:", v)
	}
	switch {
	case len(violations) > 0:
		return fmt.Errorf("the order was wrong %d times", len(violations))
	case !same:
		return fmt.Errorf("pods by pool are %v, not %v", got, e.want)
	}
	fmt.Fprintf(o.Out, "\nVerdict: right. Pods by pool: %s; the order was never wrong, and the virtual node opened when no pool could grow.\n", strings.Join(parts, ", "))
	return nil
}

// compare watches on until the run is as long as the one with the same load, which shows whether VMs still come, and says what was
// different.
func (e *experiment) compare(ctx context.Context, s *show, o Options, earlier []picture.Run) (picture.Run, error) {
	i := slices.IndexFunc(earlier, func(r picture.Run) bool { return r.Load == e.load })
	if i < 0 {
		return s.seen(), nil // it failed, which was said
	}
	if err := s.watch(ctx, time.Duration(earlier[i].Seconds*float64(time.Second))); err != nil {
		return s.seen(), err
	}
	run := s.seen()
	run.Seconds = max(earlier[i].Seconds, run.Steps[len(run.Steps)-1].Seconds) // it was looked for a moment longer
	for _, w := range run.Wrong {
		run.Seconds = max(run.Seconds, w.Seconds)
	}
	ours, theirs := earlier[i].Summary(), run.Summary()
	fmt.Fprintf(o.Out, "\nDifference: without us %d of %d VMs were used and %d of %d pods are on the virtual node; with us %d VMs and %d pods.\n"+
		"Pods that were placed while a better pool had room or could grow: without us %d, with us %d.\n",
		theirs.VMs, theirs.MaxVMs, theirs.Virtual, theirs.Replicas, ours.VMs, ours.Virtual, theirs.Wrong, ours.Wrong)
	return run, nil
}
