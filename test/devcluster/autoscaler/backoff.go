package autoscaler

import "time"

// backoff is the backoff of a group after a failure. Source: utils/backoff/exponential_backoff.go.
type backoff struct {
	duration      time.Duration
	until, failed time.Time
	code, message string
}

// backOff puts the group in backoff. The duration doubles only if the last backoff has ended.
func (l *loop) backOff(name, code, message string) {
	duration := l.options.InitialBackoff
	if b, ok := l.backoffs[name]; ok && b.until.Before(l.now) {
		duration = min(2*b.duration, l.options.MaxBackoff)
	}
	l.backoffs[name] = backoff{duration: duration, until: l.now.Add(duration), failed: l.now, code: code, message: message}
}

func (l *loop) backedOff(name string) bool { return l.backoffs[name].until.After(l.now) }

func (l *loop) forgetBackoffs() {
	for name, b := range l.backoffs {
		if b.failed.Add(l.options.BackoffReset).Before(l.now) {
			delete(l.backoffs, name)
		}
	}
}
