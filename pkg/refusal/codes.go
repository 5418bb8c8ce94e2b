package refusal

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// codes maps Azure's known error codes for a container group to causes. The cause of an unknown code is determined by
// ofPoolParts and the HTTP status. Sources: Microsoft's "Troubleshoot common issues in Azure Container Instances" and
// "Troubleshoot common Azure deployment errors", and public reports of pods on virtual nodes
// (virtual-kubelet/virtual-kubelet#592, #153, #237; MicrosoftDocs/azure-docs#29780, #51738; Azure/dev-box-images#8;
// Azure/azure-cli#26001, #30915).
var codes = map[string]Cause{
	// A quota is exhausted, or the region has no capacity. Azure returns ServiceUnavailable with HTTP status 409. The
	// region may lack capacity only for pods of the same size.
	codeQuota:              PoolError,
	"QuotaExceeded":        PoolError,
	codeUnavailable:        PoolError,
	"InsufficientCapacity": PoolError,
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
	codeNoToken:                  PoolError,
	"InvalidAuthenticationToken": PoolError,
	"ExpiredAuthenticationToken": PoolError,
	codeUnreachable:              PoolError,
	// The virtual node's subscription, resource group or subnet is not set up correctly. Azure returns the error for
	// the subnet with HTTP status 400.
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
	// The container group is still being created, and virtual-kubelet tried to create it a second time. This happens if
	// a pod changes shortly after its creation.
	"ContainerGroupTransitioning": NeitherError,
	"AnotherOperationInProgress":  NeitherError,
	// A registry that fails or throttles may affect one image or all images. A policy may also affect one image or all
	// images.
	"RegistryErrorResponse":     Unknown,
	"RequestDisallowedByPolicy": Unknown,
}

// CodeLate is the code for a pod that was not refused, but did not start in time.
const CodeLate = "NotStarted"

const (
	// codeUnsupported and codeUnreachable are codes of this package. codeUnsupported is for a pod that the ACI
	// connector itself refuses. codeUnreachable is for a connector that cannot reach Azure.
	codeUnsupported = "Unsupported"
	codeUnreachable = "Unreachable"
	codeNoImage     = "InaccessibleImage"
	codeNoToken     = "AuthenticationFailed"
	codeQuota       = "ContainerGroupQuotaReached"
	codeUnavailable = "ServiceUnavailable"
	// codeOther is the value of the metrics label for all unknown codes.
	codeOther = "other"
	// maxMessage bounds how many bytes of the provider's message are kept, and maxRead bounds how many bytes are read.
	maxMessage, maxRead = 256, 16 << 10
)

// plain lists parts of the ACI connector's own error messages, which have no code. A message with one of these parts
// means a pod error. Source: virtual-kubelet/azure-aci, pkg/provider/aci.go and aci_volumes.go.
var plain = []string{
	"ACI does not support", "azure container instances init", "of an unsupported type", "probe must specify one of", "probe may not specify more than one of",
	"unable to find named port", "image pull secret", "present in secret", "malformed dockerconfigjson", "auth config for server", "auth for server",
	"the pod requires GPU", "GPU must be a integer number", "is required by Pod", "is required by pod", "AzureFile",
}

var (
	// missingSecret matches the connector's error for an imagePullSecret that does not exist.
	missingSecret = regexp.MustCompile(`^secrets? ".*" not found`)
	// credentials matches the error of a connector that gets no token from Azure. The error may contain any HTTP
	// status.
	credentials = regexp.MustCompile(`Credential: |Credential authentication failed|failed to acquire a token|Failed to refresh the Token|AADSTS\d+`)
	// unreachable matches the error of a connector that gets no response from Azure.
	unreachable = regexp.MustCompile(`dial tcp|no such host|connection refused|connection reset|i/o timeout|TLS handshake timeout|context deadline exceeded`)
	// written matches the forms in which an error message contains a code. The forms are azcore's ResponseError,
	// autorest's errors, azure-aci's own errors before 1.5, and Azure's JSON response, which may be quoted in another
	// response.
	written  = regexp.MustCompile(`ERROR CODE: (\w{1,80})|Code="(\w{1,80})"|error code "(\w{1,80})"|\\*"code\\*"\s*:\s*\\*"(\w{1,80})`)
	status   = regexp.MustCompile(`RESPONSE (\d{3})\b|StatusCode=(\d{3})\b|status code (\d{3})\b`)
	said     = regexp.MustCompile(`Message="((?:[^"\\]|\\.)*)"|"message"\s*:\s*"((?:[^"\\]|\\.)*)"|\\+"message\\+"\s*:\s*\\+"([^"\\]+)|error code "\w+": (.+)`)
	numbered = regexp.MustCompile(`^HTTP\d{3}$`)
	// ofQuota matches the text of a refusal because of a quota, whatever its code.
	ofQuota = regexp.MustCompile(`(?i)\bquota\b`)
	// body matches the rest of a message from the first part that Azure wrote.
	body = regexp.MustCompile(`(?s)(RESPONSE \d{3}\b|Message="|error code "|\{).*`)
	// quoted matches text in quotes. An apostrophe within a word is no quote.
	quoted = regexp.MustCompile("\"[^\"]*\"|\\B'[^']*'|`[^`]*`")
	// urls matches the URL of a request. It has names that users chose.
	urls = regexp.MustCompile(`https?://\S+`)
	// noise matches the separators between the parts of a ResponseError, and its request line.
	noise = regexp.MustCompile(`-{8,}|(GET|PUT|POST|DELETE) https?://\S+`)
)

// Label returns the value of the metrics label for the code. All unknown codes have the same value, because the number
// of values must be bounded.
func Label(code string) string {
	if _, known := codes[code]; known || code == CodeLate || numbered.MatchString(code) {
		return code
	}
	return codeOther
}

// ofPoolParts lists parts of unknown codes. A code with one of these parts means a pool error: a quota, throttling, or
// an error in the virtual node's network. Azure reports a full subnet with HTTP status 400.
var ofPoolParts = []string{"Quota", "Throttl", "Subnet", "VirtualNetwork", "NetworkProfile", "IPAddress"}

// classify returns the refusal that the message of a refused pod describes.
func classify(message string) Refusal {
	if len(message) > maxRead {
		message = message[:maxRead]
	}
	r := Refusal{Cause: Unknown, Message: shorten(message)}
	own := urls.ReplaceAllString(body.ReplaceAllString(message, ""), "") // what the connector wrote
	if ofPod(own) {                                                      // whatever else it says is quoted from the pod or its secrets
		r.Code, r.Cause, r.MayPass = codeUnsupported, PodError, missingSecret.MatchString(own)
		return r
	}
	if r.Code = codeIn(message); r.Code != "" {
		if text := textAfter(message, r.Code); text != "" {
			r.Message = text
		}
		if r.Code == codeUnavailable && ofQuota.MatchString(quoted.ReplaceAllString(r.Message, "")) {
			r.Code = codeQuota
		}
		if cause, known := codes[r.Code]; known {
			r.Cause, r.MayPass = cause, r.Code == codeNoImage
			return r
		}
	}
	own = quoted.ReplaceAllString(own, "") // without names that users chose
	if credentials.MatchString(own) {
		r.Code, r.Cause, r.Message = codeNoToken, PoolError, shorten(message)
		return r
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
	case r.Code == "" && unreachable.MatchString(own):
		r.Code, r.Cause = codeUnreachable, PoolError
	}
	return r
}

// ofPod reports whether a message that the connector itself wrote is a pod error.
func ofPod(own string) bool {
	return missingSecret.MatchString(own) || slices.ContainsFunc(plain, func(words string) bool { return strings.Contains(own, words) })
}

// ofStatus returns the cause of a message that has an HTTP status, but no known error code.
func ofStatus(number string) Cause {
	switch {
	case number == "401", number == "403", number == "429", number[0] == '5':
		return PoolError
	case number == "400", number == "413", number == "422":
		return PodError
	}
	return Unknown
}

// codeIn returns the message's first known code, which is a code in the table codes. If no code is known, codeIn
// returns the first code. Azure may wrap a specific error in a general error, whose unknown code comes first.
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

// textAfter returns the human-readable text after the code, shortened. If there is none, it returns the first
// human-readable text in the message. If the message has none, it returns "".
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

// group returns the text of the first capturing group that matched, or "" if no group matched.
func group(match []string) string {
	return cmp.Or(match[min(1, len(match)):]...)
}

// shorten returns the text without noise, in one line of at most maxMessage bytes.
func shorten(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(noise.ReplaceAllString(text, "")), " "), "")
	if len(text) <= maxMessage {
		return text
	}
	return Short(text, maxMessage-len(more))
}

// MaxEvent is how many bytes of a message an event gets. An event can hold 1,024 bytes.
const MaxEvent, more = 1000, " …"

// Short returns the text. If it has more than the given number of bytes, Short cuts it there, and adds " …".
func Short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + more
}
