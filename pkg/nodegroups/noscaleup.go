package nodegroups

import "time"

// NoScaleUp is an event that the cluster autoscaler writes on a pod if it scales up no node group for the pod. The event
// counts node groups by the reason why they were not scaled up.
type NoScaleUp struct {
	// At is the time in the event, in whole seconds. Seen is when the scheduler received the event.
	At, Seen time.Time
	// Groups is the number of node groups that the event counts. AtMax of them are at their maximum size. The nodes of
	// all others cannot run the pod. Groups is 0 if the event does not say exactly this.
	Groups, AtMax int
}

// LastStatus describes the cluster autoscaler's last status.
type LastStatus struct {
	// Seen is when the scheduler first saw the status.
	Seen time.Time `json:"seen,omitzero"`
	// Groups is the number of node groups in the status. AtMax of them are at their maximum size.
	Groups int `json:"groups,omitempty"`
	AtMax  int `json:"atMax,omitempty"`
	// EventsSince is since when the scheduler has received the autoscaler's events; zero if it does not read them.
	EventsSince time.Time `json:"eventsSince,omitzero"`
}

// Confirms reports whether the event and the status together prove that no node group can be scaled up for the pod.
// since is the latest time at which the pod's wait began or one of its node groups changed. The event must count all
// node groups. It must have arrived after since, and the status after the event. Events that already existed when the
// scheduler began to receive them do not count. Nor do events that reached the scheduler late, by the event's own time.
func (s *LastStatus) Confirms(e NoScaleUp, since time.Time) bool {
	return e.Groups > 0 && e.Groups == s.Groups && e.AtMax == s.AtMax &&
		!s.EventsSince.IsZero() && e.Seen.After(s.EventsSince) &&
		e.Seen.After(since) && !e.At.Before(since.Truncate(time.Second)) && s.Seen.After(e.Seen)
}
