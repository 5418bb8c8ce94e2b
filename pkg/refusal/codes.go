package refusal

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// codes has the causes of Azure's known error codes for a container group. For an unknown code, ofPoolParts and the
// HTTP status decide. Sources: Microsoft's "Troubleshoot common issues in Azure Container Instances" and "Troubleshoot
// common Azure deployment errors", and public reports of pods on virtual nodes (virtual-kubelet/virtual-kubelet#592,
// #153, #237; MicrosoftDocs/azure-docs#29780, #51738; Azure/dev-box-images#8; Azure/azure-cli#26001, #30915).
var codes = map[string]Cause{
	// Quotas, and a region without capacity. ServiceUnavailable comes with 409. The region may lack capacity only for
	// pods of this size.
	"ContainerGroupQuotaReached": PoolError,
	"QuotaExceeded":              PoolError,
	"ServiceUnavailable":         PoolError,
	"InsufficientCapacity":       PoolError,
	// Throttling, by Container Instances and by Azure Resource Manager.
	"TooManyRequests":               PoolError,
	"SubscriptionRequestsThrottled": PoolError,
	// Azure's own errors.
	"InternalServerError": PoolError,
	"ServerTimeout":       PoolError,
	"GatewayTimeout":      PoolError,
	// The connector lacks a permission, or cannot reach Azure.
	"AuthorizationFailed":        PoolError,
	"LinkedAuthorizationFailed":  PoolError,
	"AuthenticationFailed":       PoolError,
	"InvalidAuthenticationToken": PoolError,
	"ExpiredAuthenticationToken": PoolError,
	codeUnreachable:              PoolError,
	// The virtual node's setup: its subscription, resource group and subnet. The error for the subnet comes with 400.
	"SubscriptionNotFound":            PoolError,
	"MissingSubscriptionRegistration": PoolError,
	"ReadOnlyDisabledSubscription":    PoolError,
	"ResourceGroupNotFound":           PoolError,
	"ResourceGroupBeingDeleted":       PoolError,
	"ScopeLocked":                     PoolError,
	"SubnetMissingRequiredDelegation": PoolError,
	// Errors of the pod.
	codeNoImage: PodError,
	"ContainerLimitGreaterThanContainerGroupTotalRequest": PodError,
	"ImageOsTypeNotMatchContainerGroup":                   PodError,
	"InvalidParameter":                                    PodError,
	"InvalidRequestContent":                               PodError,
	codeUnsupported:                                       PodError,
	// A second creation of a container group that is still being created. virtual-kubelet tries to create a young pod
	// again when the pod changes.
	"ContainerGroupTransitioning": NeitherError,
	"AnotherOperationInProgress":  NeitherError,
	// A registry that is out of order or throttles, or a policy, may affect one image or all images.
	"RegistryErrorResponse":     Unknown,
	"RequestDisallowedByPolicy": Unknown,
}

// CodeLate is the code for pods that do not start in time without being refused.
const CodeLate = "NotStarted"

const (
	// codeUnsupported is our code for a pod that the connector itself refuses, without a code. codeUnreachable is our
	// code for a connector that cannot reach Azure.
	codeUnsupported = "Unsupported"
	codeUnreachable = "Unreachable"
	codeNoImage     = "InaccessibleImage"
	// codeOther is the label in metrics for all codes that are in no table.
	codeOther = "other"
	// maxMessage bounds how many bytes of the provider's message are kept, and maxRead how many bytes are read.
	maxMessage, maxRead = 256, 16 << 10
)

// plain lists texts that mean a pod error. They are texts of the connector's own errors, which have no code. Source:
// virtual-kubelet/azure-aci, pkg/provider/aci.go and aci_volumes.go.
var plain = []string{
	"ACI does not support", "azure container instances init", "of an unsupported type", "probe must specify one of", "probe may not specify more than one of",
	"unable to find named port", "image pull secret", "present in secret", "malformed dockerconfigjson", "auth config for server", "auth for server",
	"the pod requires GPU", "GPU must be a integer number", "is required by Pod", "is required by pod", "AzureFile",
}

var (
	// missingSecret matches the connector's error for an imagePullSecret that does not exist.
	missingSecret = regexp.MustCompile(`^secrets? "[^"]*" not found`)
	// credentials matches the error of a connector that gets no token, whatever HTTP status the error contains.
	credentials = regexp.MustCompile(`Credential: |Credential authentication failed|failed to acquire a token|Failed to refresh the Token|AADSTS\d+`)
	// unreachable matches the error of a connector that gets no answer.
	unreachable = regexp.MustCompile(`dial tcp|no such host|connection refused|connection reset|i/o timeout|TLS handshake timeout|context deadline exceeded`)
	// written matches the forms in which clients of Azure write a code: azcore's ResponseError, autorest's errors,
	// azure-aci's own errors before 1.5, and the JSON of the answer, which may be quoted in another answer.
	written  = regexp.MustCompile(`ERROR CODE: (\w{1,80})|Code="(\w{1,80})"|error code "(\w{1,80})"|\\*"code\\*"\s*:\s*\\*"(\w{1,80})`)
	status   = regexp.MustCompile(`RESPONSE (\d{3})\b|StatusCode=(\d{3})\b|status code (\d{3})\b`)
	said     = regexp.MustCompile(`Message="((?:[^"\\]|\\.)*)"|"message"\s*:\s*"((?:[^"\\]|\\.)*)"|\\+"message\\+"\s*:\s*\\+"([^"\\]+)|error code "\w+": (.+)`)
	numbered = regexp.MustCompile(`^HTTP\d{3}$`)
	// noise matches the separators between the parts of a ResponseError, and its request line.
	noise = regexp.MustCompile(`-{8,}|(GET|PUT|POST|DELETE) https?://\S+`)
)

// Label returns the label of the code in metrics, where the number of values must be bounded.
func Label(code string) string {
	if _, known := codes[code]; known || code == CodeLate || numbered.MatchString(code) {
		return code
	}
	return codeOther
}

// ofPoolParts lists parts of codes that mean a pool error even if the code is not in the table: quotas, throttling, and
// the virtual node's network. Azure reports a full subnet with 400.
var ofPoolParts = []string{"Quota", "Throttl", "Subnet", "VirtualNetwork", "NetworkProfile", "IPAddress"}

// classify returns the refusal that the message of a refused pod describes.
func classify(message string) Refusal {
	if len(message) > maxRead {
		message = message[:maxRead]
	}
	r := Refusal{Cause: Unknown, Message: shorten(message)}
	switch {
	case credentials.MatchString(message):
		r.Code, r.Cause = "AuthenticationFailed", PoolError
		return r
	case ofPod(message):
		r.Code, r.Cause, r.MayPass = codeUnsupported, PodError, missingSecret.MatchString(message)
		return r
	}
	if r.Code = codeIn(message); r.Code != "" {
		if text := textAfter(message, r.Code); text != "" {
			r.Message = text
		}
		if cause, known := codes[r.Code]; known {
			r.Cause, r.MayPass = cause, r.Code == codeNoImage
			return r
		}
	}
	number := group(status.FindStringSubmatch(message))
	if r.Code == "" && number != "" {
		r.Code = "HTTP" + number
	}
	switch {
	case slices.ContainsFunc(ofPoolParts, func(part string) bool { return strings.Contains(r.Code, part) }):
		r.Cause = PoolError
	case number != "":
		r.Cause = ofStatus(number)
		r.MayPass = r.Cause == PodError
	case r.Code == "" && unreachable.MatchString(message):
		r.Code, r.Cause = codeUnreachable, PoolError
	}
	return r
}

// ofPod reports whether the message is a pod error of the connector itself.
func ofPod(message string) bool {
	return !status.MatchString(message) && !written.MatchString(message) &&
		(missingSecret.MatchString(message) || slices.ContainsFunc(plain, func(words string) bool { return strings.Contains(message, words) }))
}

// ofStatus returns the cause by the HTTP status alone, for a message without a known error code.
func ofStatus(number string) Cause {
	switch {
	case number == "401", number == "403", number == "429", number[0] == '5':
		return PoolError
	case number == "400", number == "413", number == "422":
		return PodError
	}
	return Unknown
}

// codeIn returns the first code in the message that the table codes contains. Azure may wrap a specific error in a
// general one, whose code comes first and is not in the table. If no code is in the table, it returns the first code.
func codeIn(message string) string {
	first := ""
	for _, match := range written.FindAllStringSubmatch(message, -1) {
		code := group(match)
		if _, known := codes[code]; known {
			return code
		}
		if first == "" && code != "UNAVAILABLE" { // azcore's "ERROR CODE UNAVAILABLE" means that there is no code
			first = code
		}
	}
	return first
}

// textAfter returns the human-readable text after the code, or else the first such text in the message, shortened. It
// returns "" if there is none.
func textAfter(message, code string) string {
	_, rest, _ := strings.Cut(message, code)
	text := group(said.FindStringSubmatch(code + rest))
	if text == "" {
		text = group(said.FindStringSubmatch(message))
	}
	if unquoted, err := strconv.Unquote(`"` + text + `"`); err == nil {
		text = unquoted
	}
	return shorten(text)
}

// group returns the text of the first group that matched; empty if none did.
func group(match []string) string {
	for i := 1; i < len(match); i++ {
		if match[i] != "" {
			return match[i]
		}
	}
	return ""
}

// shorten returns the text without noise, in one line of at most maxMessage bytes.
func shorten(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(noise.ReplaceAllString(text, "")), " "), "")
	if len(text) <= maxMessage {
		return text
	}
	const more = " …"
	return strings.ToValidUTF8(text[:maxMessage-len(more)], "") + more
}
