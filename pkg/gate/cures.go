package gate

import "poolpriority.dev/scheduler/pkg/aci"

// cures are what helps a pod for which a gate is closed for good, by the code of the reason.
var cures = map[string]string{
	ReasonOptOut.Code:    "it may burst without the annotation " + BurstAnnotation + ": " + BurstNever,
	reasonValue.Code:     "give the annotation " + BurstAnnotation + " the value " + BurstNever + " or " + burstAlways + ", or remove it",
	reasonSpread.Code:    "it may burst if its topologySpreadConstraints do not ask for that label, or not with DoNotSchedule",
	ReasonTemplate.Code:  "change what the provider refuses in the workload's template",
	reasonNamespace.Code: "it may burst if its namespace has the labels that the pool's namespaceSelector asks for",
	reasonTooLarge.Code:  "it may burst if it requests less: the largest pod is in the pool's configuration (largest)",
}

// Cure is what helps a pod for which a gate is closed for the reason with the code, if that will not be over by itself; "" otherwise.
func Cure(code string) string {
	if Waits(code) {
		return ""
	}
	if cure, ok := cures[code]; ok {
		return cure
	}
	for _, feature := range aci.Features() {
		if feature.Code != code {
			continue
		}
		if feature.Any {
			return "no virtual kubelet runs such pods"
		}
		return "it may burst if it does without; the annotation " + BurstAnnotation + ": " + burstAlways + " says that it runs there all the same"
	}
	return ""
}
