package refusal

// classify reads the message of a pod that was refused.
func classify(message string) Refusal {
	return Refusal{Class: Unknown, Message: message}
}
