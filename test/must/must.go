// Package must has calls that fail the test on an error.
package must

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

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

// Get returns the value of a call that must not fail: must.Get(os.Open(path))(t).
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Eventually waits until the condition holds, for at most a minute.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it does not hold that %s", what)
		}
	}
}

// ReadFile returns the content of the file.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	NoError(t, err)
	return data
}

// WriteFile writes a file with the name to a temporary directory of the test, and returns its path.
func WriteFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	NoError(t, os.WriteFile(path, data, 0o600))
	return path
}
