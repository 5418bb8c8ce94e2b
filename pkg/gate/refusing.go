package gate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// ofTemplate answers for a pod of whose template the burst pool's provider has refused pods for what they are, and reports whether it has. The
// annotation poolpriority.dev/burst: Always does not override that: it says that the table of what cannot run is wrong, but here it was tried,
// and would be again and again.
func ofTemplate(pod *corev1.Pod, p *nodegroups.Pool, now time.Time) (Verdict, bool) {
	if len(p.Provider.Templates) == 0 {
		return Verdict{}, false
	}
	template, refused := p.Provider.Templates[refusal.TemplateOf(pod)]
	if !refused || !now.Before(template.Until) {
		return Verdict{}, false
	}
	v := Verdict{Reason: ReasonTemplate, Until: template.Until}
	v.Reason.Detail = template.Code + ": " + template.Message
	return v, true
}

// ofProvider answers for the burst pool with index i, which v says is open for the pod, by whether its provider takes pods: not while it
// refuses them, and one at a time while that is being tried. The reasons for which a gate is open against the odds are none against this: it
// would do the pod no good.
func ofProvider(v Verdict, req Request, i int, provider *refusal.Judgement, now time.Time) Verdict {
	switch {
	case provider.State != refusal.Refusing && provider.State != refusal.Probing:
		return v
	case provider.State == refusal.Refusing && now.Before(provider.Until):
		closed := Verdict{Reason: ReasonRefused, Until: provider.Until}
		closed.Reason.Detail = detailOf(provider) + ", tried again at " + provider.Until.UTC().Format(time.RFC3339)
		return closed
	}
	starting := provider.Starting
	if req.Starting != nil {
		starting = req.Starting(i)
	}
	if starting > 0 {
		closed := Verdict{Reason: ReasonProbed}
		closed.Reason.Detail = detailOf(provider)
		return closed
	}
	v.Probe = true
	return v
}

// detailOf is what the provider said, and since when.
func detailOf(provider *refusal.Judgement) string {
	return fmt.Sprintf("%s since %s: %s", provider.Code, provider.Since.UTC().Format(time.RFC3339), provider.Message)
}
