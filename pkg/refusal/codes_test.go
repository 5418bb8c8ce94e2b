package refusal

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// responseError returns the message of azcore's ResponseError.
func responseError(status, code, body string) string {
	const line = "--------------------------------------------------------------------------------\n"
	return "PUT https://management.azure.com/subscriptions/0000/resourceGroups/MC_rg/providers/Microsoft.ContainerInstance/containerGroups/default-web-1\n" +
		line + "RESPONSE " + status + "\n" + code + "\n" + line + body + "\n" + line
}

func TestClassify(t *testing.T) {
	const quota = "Resource type 'Microsoft.ContainerInstance/containerGroups' container group quota 'StandardCores' exceeded in region 'eastus'. Limit: '10', Usage: '10' Requested: '1'."
	const stockout = "The requested resource is not available in the location 'westus' at this moment. Please retry with a different resource request or in another location. Resource requested: '4' CPU '16' GB memory 'Linux' OS virtual network"
	const tooLarge = "The 'MemoryInGB' limit '1.5' in container 'helloworld' is greater than the total request '1' of container group 'default-helloworld'."
	const api = "api call to https://management.azure.com/subscriptions/0000/resourceGroups/rg/providers/Microsoft.ContainerInstance/containerGroups/default-web?api-version=2018-09-01: got HTTP response "
	for _, tc := range []struct {
		name, message string
		want          Refusal
	}{
		{"quota, by azcore",
			responseError("409: 409 Conflict", "ERROR CODE: ContainerGroupQuotaReached", "{\n  \"error\": {\n    \"code\": \"ContainerGroupQuotaReached\",\n    \"message\": \""+quota+"\"\n  }\n}"),
			Refusal{Code: "ContainerGroupQuotaReached", Cause: PoolError, Message: quota}},
		{"stockout, by autorest",
			`containerinstance.ContainerGroupsClient#CreateOrUpdate: Failure sending request: StatusCode=409 -- Original Error: Code="ServiceUnavailable" Message="` + stockout + `"`,
			Refusal{Code: "ServiceUnavailable", Cause: PoolError, Message: stockout}},
		{"a quota, with the code of a stockout", responseError("409: 409 Conflict", "ERROR CODE: ServiceUnavailable", `{"error":{"code":"ServiceUnavailable","message":"The quota of cores in 'westus' is used up."}}`),
			Refusal{Code: "ContainerGroupQuotaReached", Cause: PoolError, Message: "The quota of cores in 'westus' is used up."}},
		{"a stockout for an image with the name of a quota", api + `status code 409 error code "ServiceUnavailable": no room for 'quota/web:1'`,
			Refusal{Code: "ServiceUnavailable", Cause: PoolError, Message: "no room for 'quota/web:1'"}},
		{"stockout, by azure-aci before 1.5", api + `status code 409 error code "ServiceUnavailable": ` + stockout, Refusal{Code: "ServiceUnavailable", Cause: PoolError, Message: stockout}},
		{"a quota, in a resource group that is named like a volume", "PUT https://management.azure.com/subscriptions/0000/resourceGroups/MC_AzureFileTeam/providers\n--------------------------------------------------------------------------------\nRESPONSE 409: 409 Conflict\nERROR CODE: QuotaExceeded\n",
			Refusal{Code: "QuotaExceeded", Cause: PoolError, Message: "RESPONSE 409: 409 Conflict ERROR CODE: QuotaExceeded"}},
		{"a quota of another name, by its word", responseError("409: 409 Conflict", "ERROR CODE: SpotContainerGroupQuotaExceeded", `{"error":{"code":"SpotContainerGroupQuotaExceeded","message":"no"}}`),
			Refusal{Code: "SpotContainerGroupQuotaExceeded", Cause: PoolError, Message: "no"}},
		{"throttled, without a body", responseError("429: 429 Too Many Requests", "ERROR CODE UNAVAILABLE", "Response contained no body"),
			Refusal{Code: "HTTP429", Cause: PoolError, Message: "RESPONSE 429: 429 Too Many Requests ERROR CODE UNAVAILABLE Response contained no body"}},
		{"an error of Azure", responseError("500: 500 Internal Server Error", "ERROR CODE: InternalServerError", `{"error":{"code":"InternalServerError","message":"Encountered an internal server error."}}`),
			Refusal{Code: "InternalServerError", Cause: PoolError, Message: "Encountered an internal server error."}},
		{"a code that is not known, with 503", responseError("503: 503 Service Unavailable", "ERROR CODE: Busy", `{"error":{"code":"Busy","message":"later"}}`), Refusal{Code: "Busy", Cause: PoolError, Message: "later"}},
		{"the connector may not", responseError("403: 403 Forbidden", "ERROR CODE: AuthorizationFailed",
			`{"error":{"code":"AuthorizationFailed","message":"The client 'x' with object id 'x' does not have authorization to perform action."}}`),
			Refusal{Code: "AuthorizationFailed", Cause: PoolError, Message: "The client 'x' with object id 'x' does not have authorization to perform action."}},
		{"the connector gets no token, which is answered with 400",
			"ManagedIdentityCredential authentication failed. the requested identity isn't assigned to this resource\nGET http://169.254.169.254/metadata/identity/oauth2/token\n--------------------------------------------------------------------------------\nRESPONSE 400: 400 Bad Request\nERROR CODE: invalid_request",
			Refusal{Code: "AuthenticationFailed", Cause: PoolError, Message: "ManagedIdentityCredential authentication failed. the requested identity isn't assigned to this resource RESPONSE 400: 400 Bad Request ERROR CODE: invalid_request"}},
		{"Azure cannot be reached", `Put "https://management.azure.com/subscriptions/0": dial tcp: lookup management.azure.com: no such host`,
			Refusal{Code: codeUnreachable, Cause: PoolError, Message: `Put "https://management.azure.com/subscriptions/0": dial tcp: lookup management.azure.com: no such host`}},
		{"the pool's subnet, quoted in a general code and with 400",
			`{"error":{"code":"DeploymentFailed","message":"At least one failed.","details":[{"code":"BadRequest","message":"{\r\n \"error\": {\r\n \"code\": \"SubnetMissingRequiredDelegation\",\r\n \"message\": \"Subnet missing required delegation.\"}}"}]}}`,
			Refusal{Code: "SubnetMissingRequiredDelegation", Cause: PoolError, Message: "Subnet missing required delegation."}},
		{"limits above requests", api + `status code 400 error code "ContainerLimitGreaterThanContainerGroupTotalRequest": ` + tooLarge,
			Refusal{Code: "ContainerLimitGreaterThanContainerGroupTotalRequest", Cause: PodError, Message: tooLarge}},
		{"an image that cannot be had", responseError("400: 400 Bad Request", "ERROR CODE: InaccessibleImage",
			`{"error":{"code":"InaccessibleImage","message":"The image 'nginx:nosuch' in container group 'default-web-1' is not accessible. Please check the image and registry credential."}}`),
			Refusal{Code: "InaccessibleImage", Cause: PodError, Message: "The image 'nginx:nosuch' in container group 'default-web-1' is not accessible. Please check the image and registry credential."}},
		{"an image named like an error of credentials", responseError("400: 400 Bad Request", "ERROR CODE: InaccessibleImage",
			`{"error":{"code":"InaccessibleImage","message":"The image 'ghcr.io/me/x:AADSTS1' in container group 'default-web-1' is not accessible."}}`),
			Refusal{Code: "InaccessibleImage", Cause: PodError, Message: "The image 'ghcr.io/me/x:AADSTS1' in container group 'default-web-1' is not accessible."}},
		{"the same, with a code that is not known", responseError("409: 409 Conflict", "ERROR CODE: OddImage",
			`{"error":{"code":"OddImage","message":"The image ghcr.io/me/x:AADSTS1 is odd."}}`),
			Refusal{Code: "OddImage", Cause: Unknown, Message: "The image ghcr.io/me/x:AADSTS1 is odd."}},
		{"the same, in the connector's words", `invalid image 'ghcr.io/me/x:AADSTS1'`, Refusal{Cause: Unknown, Message: `invalid image 'ghcr.io/me/x:AADSTS1'`}},
		{"a credential chain", "DefaultAzureCredential: failed to acquire a token.\nAttempted credentials:\n\tEnvironmentCredential: missing environment variable AZURE_TENANT_ID",
			Refusal{Code: codeNoToken, Cause: PoolError, Message: "DefaultAzureCredential: failed to acquire a token. Attempted credentials: EnvironmentCredential: missing environment variable AZURE_TENANT_ID"}},
		{"a token that adal does not get", `azure.BearerAuthorizer#WithAuthorization: Failed to refresh the Token for request to https://management.azure.com/x: StatusCode=401 -- Original Error: adal: Refresh request failed. Response body: {"error":"invalid_client"}`,
			Refusal{Code: codeNoToken, Cause: PoolError, Message: `azure.BearerAuthorizer#WithAuthorization: Failed to refresh the Token for request to https://management.azure.com/x: StatusCode=401 -- Original Error: adal: Refresh request failed. Response body: {"error":"invalid_client"}`}},
		{"a code that is not known, with 400", responseError("400: 400 Bad Request", "ERROR CODE: InvalidVolumeName", `{"error":{"code":"InvalidVolumeName","message":"a \"name\""}}`),
			Refusal{Code: "InvalidVolumeName", Cause: PodError, Message: `a "name"`}},
		{"args without command", "ACI does not support providing args without specifying the command. Please supply both command and args to the pod spec.",
			Refusal{Code: codeUnsupported, Cause: PodError, Message: "ACI does not support providing args without specifying the command. Please supply both command and args to the pod spec."}},
		{"a TCP probe", `probe must specify one of "exec" and "httpGet"`, Refusal{Code: codeUnsupported, Cause: PodError, Message: `probe must specify one of "exec" and "httpGet"`}},
		{"a volume", "pod web requires volume data which is of an unsupported type", Refusal{Code: codeUnsupported, Cause: PodError, Message: "pod web requires volume data which is of an unsupported type"}},
		{"a pull secret that is not there", `secret "regcred" not found`, Refusal{Code: codeUnsupported, Cause: PodError, Message: `secret "regcred" not found`}},
		{"a pull secret named like an error of credentials", `secret "a\" AADSTS1 \"b" not found`, Refusal{Code: codeUnsupported, Cause: PodError, Message: `secret "a\" AADSTS1 \"b" not found`}},
		{"a secret named so", "Secret AADSTS1 is required by Pod web and does not exist", Refusal{Code: codeUnsupported, Cause: PodError, Message: "Secret AADSTS1 is required by Pod web and does not exist"}},
		{"a registry named like a quota", "no username present in auth config for server: ERROR CODE: ContainerGroupQuotaReached",
			Refusal{Code: codeUnsupported, Cause: PodError, Message: "no username present in auth config for server: ERROR CODE: ContainerGroupQuotaReached"}},
		{"a second creation", responseError("409: 409 Conflict", "ERROR CODE: ContainerGroupTransitioning", `{"error":{"code":"ContainerGroupTransitioning","message":"still transitioning, please retry later."}}`),
			Refusal{Code: "ContainerGroupTransitioning", Cause: NeitherError, Message: "still transitioning, please retry later."}},
		{"a registry", `Code="RegistryErrorResponse" Message="An error response is received from the docker registry 'index.docker.io'. Please retry later."`,
			Refusal{Code: "RegistryErrorResponse", Cause: Unknown, Message: "An error response is received from the docker registry 'index.docker.io'. Please retry later."}},
		{"409 with a code that is not known", responseError("409: 409 Conflict", "ERROR CODE: Odd", `{"error":{"code":"Odd","message":"odd"}}`), Refusal{Code: "Odd", Cause: Unknown, Message: "odd"}},
		{"another connector", "no capacity", Refusal{Code: "", Cause: Unknown, Message: "no capacity"}},
		{"nothing", "", Refusal{Cause: Unknown}},
		{"a full subnet, with 400", responseError("400: 400 Bad Request", "ERROR CODE: SubnetIsFull", `{"error":{"code":"SubnetIsFull","message":"full"}}`),
			Refusal{Code: "SubnetIsFull", Cause: PoolError, Message: "full"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.MayPass = tc.want.Code == codeNoImage || tc.name == "a code that is not known, with 400" || strings.HasPrefix(tc.name, "a pull secret")
			if diff := cmp.Diff(tc.want, classify(tc.message)); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
		})
	}
}

func TestLabel(t *testing.T) {
	for code, want := range map[string]string{"ServiceUnavailable": "ServiceUnavailable", "HTTP429": "HTTP429", "Odd": "other", "": "other"} {
		if got := Label(code); got != want {
			t.Errorf("Label(%q) = %q, want %q", code, got, want)
		}
	}
}

// FuzzClassify: for any message of a connector, the refusal has a valid cause, and a short message in one line.
func FuzzClassify(f *testing.F) {
	f.Add(responseError("409: 409 Conflict", "ERROR CODE: ContainerGroupQuotaReached", `{"error":{"code":"ContainerGroupQuotaReached","message":"no"}}`))
	f.Add(`StatusCode=429 -- Original Error: Code="TooManyRequests" Message="a \"b\" \u00e9"`)
	f.Add(`got HTTP response status code 400 error code "X": y`)
	f.Add("ACI does not support \xff" + strings.Repeat("é", maxMessage))
	f.Fuzz(func(t *testing.T, message string) {
		r := classify(message)
		switch r.Cause {
		case PoolError, PodError, NeitherError, Unknown:
		default:
			t.Errorf("class %q", r.Cause)
		}
		if len(r.Message) > maxMessage+len(" …") || strings.ContainsAny(r.Message, "\n\r") || !utf8.ValidString(r.Message) {
			t.Errorf("the message is %q", r.Message)
		}
		if len(Label(r.Code)) > len("ContainerLimitGreaterThanContainerGroupTotalRequest") {
			t.Errorf("the label is %q", Label(r.Code))
		}
	})
}
