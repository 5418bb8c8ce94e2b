// Package must fails tests where something must not.
package must

import "testing"

// NoError fails the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Do returns NoError for a call whose result is not needed: must.Do(t)(client.Create(…)).
func Do(t testing.TB) func(any, error) {
	t.Helper()
	return func(_ any, err error) {
		t.Helper()
		NoError(t, err)
	}
}
