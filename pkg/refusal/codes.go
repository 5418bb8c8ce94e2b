package refusal

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// codes are what is known of the codes by which Azure refuses a container group; one that is not in the table goes by its HTTP status.
// Sources: Microsoft's "Troubleshoot common issues in Azure Container Instances" and "Troubleshoot common Azure deployment errors", and public
// reports of pods on virtual nodes (virtual-kubelet/virtual-kubelet#592, #153, #237; MicrosoftDocs/azure-docs#29780, #51738;
// Azure/dev-box-images#8; Azure/azure-cli#26001, #30915).
var codes = map[string]Class{
	// Quotas, and a region that has no room. ServiceUnavailable comes with 409, and it may be the size of the pod that there is no room for.
	"ContainerGroupQuotaReached": OfPool,
	"QuotaExceeded":              OfPool,
	"ServiceUnavailable":         OfPool,
	"InsufficientCapacity":       OfPool,
	// Throttling, by Container Instances and by Azure Resource Manager.
	"TooManyRequests":               OfPool,
	"SubscriptionRequestsThrottled": OfPool,
	// Azure's own errors.
	"InternalServerError": OfPool,
	"ServerTimeout":       OfPool,
	"GatewayTimeout":      OfPool,
	// What the connector may not do, or cannot reach.
	"AuthorizationFailed":        OfPool,
	"LinkedAuthorizationFailed":  OfPool,
	"AuthenticationFailed":       OfPool,
	"InvalidAuthenticationToken": OfPool,
	"ExpiredAuthenticationToken": OfPool,
	codeUnreachable:              OfPool,
	// What the virtual node was set up with: its subscription, resource group and subnet. That of the subnet comes with 400.
	"SubscriptionNotFound":            OfPool,
	"MissingSubscriptionRegistration": OfPool,
	"ReadOnlyDisabledSubscription":    OfPool,
	"ResourceGroupNotFound":           OfPool,
	"ResourceGroupBeingDeleted":       OfPool,
	"ScopeLocked":                     OfPool,
	"SubnetMissingRequiredDelegation": OfPool,
	// What the pod is.
	codeNoImage: OfPod,
	"ContainerLimitGreaterThanContainerGroupTotalRequest": OfPod,
	"ImageOsTypeNotMatchContainerGroup":                   OfPod,
	"InvalidParameter":                                    OfPod,
	"InvalidRequestContent":                               OfPod,
	codeUnsupported:                                       OfPod,
	// A second creation of what is being created: virtual-kubelet tries again when anything about a young pod changes.
	"ContainerGroupTransitioning": OfNeither,
	"AnotherOperationInProgress":  OfNeither,
	// A registry that is out of order or throttles, and a policy, may be about one image or about all.
	"RegistryErrorResponse":     Unknown,
	"RequestDisallowedByPolicy": Unknown,
}

// CodeLate is the code of a burst pool whose pods do not start, without being refused.
const CodeLate = "NotStarted"

const (
	// codeUnsupported is ours for what the connector refuses by itself, without a code; codeUnreachable for an Azure that it cannot reach.
	codeUnsupported = "Unsupported"
	codeUnreachable = "Unreachable"
	codeNoImage     = "InaccessibleImage"
	// codeOther stands in a metric for all codes that are in no table.
	codeOther = "other"
	// maxMessage is how many bytes of what the provider said are kept, and maxRead how many are looked at.
	maxMessage, maxRead = 256, 16 << 10
)

// plain are words in errors without a code that say that the pod is at fault: the connector's own. Source: virtual-kubelet/azure-aci,
// pkg/provider/aci.go and aci_volumes.go.
var plain = []string{
	"ACI does not support", "azure container instances init", "of an unsupported type", "probe must specify one of", "probe may not specify more than one of",
	"unable to find named port", "image pull secret", "present in secret", "malformed dockerconfigjson", "auth config for server", "auth for server",
	"the pod requires GPU", "GPU must be a integer number", "is required by Pod", "is required by pod", "AzureFile",
}

var (
	// missingSecret is how a lister says that an imagePullSecret does not exist.
	missingSecret = regexp.MustCompile(`^secrets? "[^"]*" not found`)
	// credentials are words of a connector that gets no token, whatever the status of the answer that it got instead.
	credentials = regexp.MustCompile(`Credential: |Credential authentication failed|failed to acquire a token|Failed to refresh the Token|AADSTS\d+`)
	// unreachable are words of a connector that gets no answer.
	unreachable = regexp.MustCompile(`dial tcp|no such host|connection refused|connection reset|i/o timeout|TLS handshake timeout|context deadline exceeded`)
	// written are the forms in which clients of Azure write a code: azcore's ResponseError, autorest's errors, azure-aci's own before 1.5, and the
	// JSON of the answer, which may be quoted in another.
	written  = regexp.MustCompile(`ERROR CODE: (\w{1,80})|Code="(\w{1,80})"|error code "(\w{1,80})"|\\*"code\\*"\s*:\s*\\*"(\w{1,80})`)
	status   = regexp.MustCompile(`RESPONSE (\d{3})\b|StatusCode=(\d{3})\b|status code (\d{3})\b`)
	said     = regexp.MustCompile(`Message="((?:[^"\\]|\\.)*)"|"message"\s*:\s*"((?:[^"\\]|\\.)*)"|\\+"message\\+"\s*:\s*\\+"([^"\\]+)|error code "\w+": (.+)`)
	numbered = regexp.MustCompile(`^HTTP\d{3}$`)
	// noise is what a ResponseError draws between its parts, and what it asks for.
	noise = regexp.MustCompile(`-{8,}|(GET|PUT|POST|DELETE) https?://\S+`)
)

// Label returns the code as the label of a metric, whose values must be bounded.
func Label(code string) string {
	if _, known := codes[code]; known || code == CodeLate || numbered.MatchString(code) {
		return code
	}
	return codeOther
}

// ofPoolParts are parts of codes, which need not be in the table, that are about the pool: its quota, and the network that the virtual node was set
// up with, of which Azure says with 400 that a subnet is full.
var ofPoolParts = []string{"Quota", "Throttl", "Subnet", "VirtualNetwork", "NetworkProfile", "IPAddress"}

// classify reads the message of a pod that was refused.
func classify(message string) Refusal {
	if len(message) > maxRead {
		message = message[:maxRead]
	}
	r := Refusal{Class: Unknown, Message: shorten(message)}
	switch {
	case credentials.MatchString(message):
		r.Code, r.Class = "AuthenticationFailed", OfPool
		return r
	case ofPod(message):
		r.Code, r.Class, r.Curable = codeUnsupported, OfPod, missingSecret.MatchString(message)
		return r
	}
	if r.Code = codeIn(message); r.Code != "" {
		if text := textAfter(message, r.Code); text != "" {
			r.Message = text
		}
		if class, known := codes[r.Code]; known {
			r.Class, r.Curable = class, r.Code == codeNoImage
			return r
		}
	}
	number := group(status.FindStringSubmatch(message))
	if r.Code == "" && number != "" {
		r.Code = "HTTP" + number
	}
	switch {
	case slices.ContainsFunc(ofPoolParts, func(part string) bool { return strings.Contains(r.Code, part) }):
		r.Class = OfPool
	case number != "":
		r.Class = ofStatus(number)
		r.Curable = r.Class == OfPod
	case r.Code == "" && unreachable.MatchString(message):
		r.Code, r.Class = codeUnreachable, OfPool
	}
	return r
}

// ofPod reports whether the connector itself refuses the pod for what it is.
func ofPod(message string) bool {
	return !status.MatchString(message) && !written.MatchString(message) &&
		(missingSecret.MatchString(message) || slices.ContainsFunc(plain, func(words string) bool { return strings.Contains(message, words) }))
}

// ofStatus is the class of an answer of which only the HTTP status tells.
func ofStatus(number string) Class {
	switch {
	case number == "401", number == "403", number == "429", number[0] == '5':
		return OfPool
	case number == "400", number == "413", number == "422":
		return OfPod
	}
	return Unknown
}

// codeIn returns the first code in the message that is in the table, for the outer ones of an answer may be general, or else the first.
func codeIn(message string) string {
	first := ""
	for _, match := range written.FindAllStringSubmatch(message, -1) {
		code := group(match)
		if _, known := codes[code]; known {
			return code
		}
		if first == "" && code != "UNAVAILABLE" { // azcore's "ERROR CODE UNAVAILABLE" is none
			first = code
		}
	}
	return first
}

// textAfter returns what the message says after the code for people, shortened; empty if nothing is marked as such.
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

// group returns what the first of the groups matched that did; empty if the whole did not match.
func group(match []string) string {
	for i := 1; i < len(match); i++ {
		if match[i] != "" {
			return match[i]
		}
	}
	return ""
}

// shorten returns the text in one line, without what is no words, of at most maxMessage bytes.
func shorten(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(noise.ReplaceAllString(text, "")), " "), "")
	if len(text) <= maxMessage {
		return text
	}
	const more = " …"
	return strings.ToValidUTF8(text[:maxMessage-len(more)], "") + more
}
