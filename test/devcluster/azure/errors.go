package azure

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Codes of Azure's errors, as they were recorded.
const (
	CodeTransitioning   = "ContainerGroupTransitioning"
	CodeQuotaReached    = "ContainerGroupQuotaReached"
	CodeStockout        = "ServiceUnavailable" // with status 409: the region has no capacity for such a group
	CodeServerTimeout   = "ServerTimeout"      // with status 503
	CodeTooManyRequests = "TooManyRequests"
	CodeNotFound        = "ResourceNotFound"
	CodeLimitTooHigh    = "ContainerLimitGreaterThanContainerGroupTotalRequest"
)

const (
	location      = "westeurope"
	subscription  = "00000000-0000-0000-0000-000000000000"
	resourceGroup = "MC_devcluster"
	line          = "--------------------------------------------------------------------------------"
)

// Error is a response of Azure Resource Manager whose status is not 2xx. Its text is the text that the Azure SDK
// prints.
type Error struct {
	Method, Name  string
	Status        int
	Code, Message string
}

// Error returns the text of the SDK: the request, the status, the code and the indented body, separated by lines.
func (e *Error) Error() string {
	code := "ERROR CODE UNAVAILABLE"
	if e.Code != "" {
		code = "ERROR CODE: " + e.Code
	}
	body := struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}{}
	body.Error.Code, body.Error.Message = e.Code, e.Message
	text := &strings.Builder{}
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(body) // it never fails: the body has only strings
	return fmt.Sprintf("%s https://management.azure.com/subscriptions/%s/resourceGroups/%s/providers/Microsoft.ContainerInstance/containerGroups/%s\n%s\nRESPONSE %d: %d %s\n%s\n%s\n%s%s\n",
		e.Method, subscription, resourceGroup, e.Name, line, e.Status, e.Status, http.StatusText(e.Status), code, line, text, line)
}

// Refusal is an error with which the region refuses PUTs.
type Refusal struct {
	// Status is the HTTP status; Code and Message are Azure's. If Code is empty, the response has no code. If Message
	// is empty, the response has the recorded message.
	Status        int
	Code, Message string
	// Made is set if the region creates the group although it returns an error, as after a time-out.
	Made bool
	// Match reports whether the region refuses the group. If Match is nil, the region refuses all groups.
	Match func(Spec) bool
}

// recorded returns the refusal with the code and the HTTP status that was recorded with it.
func recorded(code string) Refusal {
	refusal := Refusal{Status: http.StatusConflict, Code: code}
	switch code {
	case CodeServerTimeout:
		refusal.Status = http.StatusServiceUnavailable
	case CodeTooManyRequests:
		refusal.Status = http.StatusTooManyRequests
	case CodeLimitTooHigh:
		refusal.Status = http.StatusBadRequest
	}
	return refusal
}

func (r *Refusal) answer(spec Spec) *Error {
	message := r.Message
	switch {
	case message != "":
	case r.Code == CodeStockout:
		message = fmt.Sprintf("The requested resource is not available in the location '%s' at this moment. Please retry with a different resource request or in another location. Resource requested: '%g' CPU '%g' GB memory 'Linux' OS virtual network",
			location, spec.Cores(), spec.Memory())
	case r.Code == CodeServerTimeout:
		message = fmt.Sprintf("The request timed out. Diagnostic information: timestamp '%s', subscription id '%s', tracking id '%[2]s', request correlation id '%[2]s'.", time.Now().UTC().Format("20060102T150405Z"), subscription)
	case r.Code == CodeTransitioning:
		message = fmt.Sprintf("The container group '%s' is still transitioning, please retry later.", spec.Name)
	case r.Code == CodeQuotaReached:
		return quotaReached(spec, 0, 0)
	default:
		message = "The request was refused."
	}
	return putError(spec.Name, r.Status, r.Code, message)
}

func quotaReached(spec Spec, limit, used float64) *Error {
	return putError(spec.Name, http.StatusConflict, CodeQuotaReached, fmt.Sprintf("Resource type 'Microsoft.ContainerInstance/containerGroups' container group quota 'StandardCores' exceeded in region '%s'. Limit: '%g', Usage: '%g' Requested: '%g'.",
		location, limit, used, spec.Cores()))
}

// tooHighLimit refuses a container whose limit exceeds the sum of the requests of all containers.
func tooHighLimit(spec Spec) *Error {
	for _, c := range spec.Containers {
		for _, r := range []struct {
			name         string
			limit, total float64
		}{{"Cpu", c.CPULimit, spec.Cores()}, {"MemoryInGB", c.MemoryLimit, spec.Memory()}} {
			if r.limit > r.total {
				return putError(spec.Name, http.StatusBadRequest, CodeLimitTooHigh, fmt.Sprintf("The '%s' limit '%g' in container '%s' is greater than the total request '%g' of container group '%s'.",
					r.name, r.limit, c.Name, r.total, spec.Name))
			}
		}
	}
	return nil
}

func putError(name string, status int, code, message string) *Error {
	return &Error{Method: http.MethodPut, Name: name, Status: status, Code: code, Message: message}
}
