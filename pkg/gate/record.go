package gate

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"poolpriority.dev/scheduler/pkg/pool"
)

// DecisionAnnotation is the pod annotation that shows why the gate let the pod into a burst pool. The annotation's
// value is a Record in JSON. The scheduler writes the annotation in the Binding.
const DecisionAnnotation = "poolpriority.dev/decision"

// Record shows why the gate let a pod into a burst pool.
type Record struct {
	// Reason is the code of the verdict's reason.
	Reason string `json:"reason"`
	// Observed is set if only "mode: Observe" opened the gate. Reason then says why "mode: Enforce" would have closed it.
	Observed bool `json:"observed,omitempty"`
	// Waited is how long the pod was unschedulable, formatted as a time.Duration; empty if the pod was never
	// unschedulable.
	Waited string `json:"waited,omitempty"`
	// Pools has the code of each regular pool's reason, by the pool's name.
	Pools map[string]string `json:"pools,omitempty"`
}

// Record returns why the decision lets the pod into the burst pool with index i. waited is how long the pod was
// unschedulable.
func (d *Decision) Record(pools pool.List, i int, waited time.Duration) Record {
	v := &d.Burst[i]
	r := Record{Reason: v.Reason.Code, Observed: v.Observed}
	if waited > 0 {
		r.Waited = Rounded(waited).String()
	}
	for k := range d.Regular {
		if code := d.Regular[k].Reason.Code; code != "" {
			if r.Pools == nil {
				r.Pools = map[string]string{}
			}
			r.Pools[pools.At(k).Name] = code
		}
	}
	return r
}

// Rounded rounds a duration for display. Below ten seconds it rounds to tenths of a second, otherwise to seconds.
func Rounded(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

// Encode returns the annotation's value.
func (r Record) Encode() string {
	data, _ := json.Marshal(r) // encoding a Record does not fail
	return string(data)
}

// maxRecord bounds the bytes of an annotation's value that ParseRecord reads.
const maxRecord = 4096

// ParseRecord reads the annotation's value. The value may come from a user.
func ParseRecord(value string) (Record, error) {
	var r Record
	if len(value) > maxRecord {
		return Record{}, fmt.Errorf("annotation %s has more than %d bytes", DecisionAnnotation, maxRecord)
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return Record{}, fmt.Errorf("reading annotation %s: %w", DecisionAnnotation, err)
	}
	return r, nil
}

// Message describes why the decision lets the pod into the burst pool with index i.
func (d *Decision) Message(pools pool.List, i int, waited time.Duration) string {
	v, text := &d.Burst[i], "Let into "+pools.At(i).Name
	if v.Observed {
		text += " in mode Observe; in mode Enforce, the gate would be closed: " + v.Reason.Code
	} else {
		text += ": " + v.Reason.Sentence
	}
	var said []string
	for k := range d.Regular {
		if reason := d.Regular[k].Reason; reason.Code != "" {
			if IsNotApplicable(reason) {
				reason.Code += ": " + reason.Detail
			}
			said = append(said, pools.At(k).Name+" "+reason.Code)
		}
	}
	if len(said) > 0 {
		text += " (" + strings.Join(said, ", ") + ")"
	}
	if waited > 0 {
		text += ", after " + Rounded(waited).String()
	}
	return text
}
