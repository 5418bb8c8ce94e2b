package devcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Clusters use ports below the range from which the kernel takes ports for outgoing connections (Linux: 32768 and up).
// So the kernel gives no client such a port after FreePort has returned it, or while its server restarts.
const firstPort, lastPort = 20000, 29999

// portAttempts is how often the start of a server is tried if another process has taken the server's port.
const portAttempts = 4

// errPortTaken means that a process has ended because another process listens on its port.
var errPortTaken = errors.New("its port is taken")

// portTaken is a text that all servers log if their port is taken.
const portTaken = "address already in use"

var ports = struct {
	sync.Mutex
	used map[int]bool // by clusters of this process, which may not have bound them yet
}{used: map[int]bool{}}

// FreePort returns a port on loopback on which no process listens now, and which FreePort has not returned before.
func FreePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	const looks = 1000
	var last error
	for range looks {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if ports.used[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		_ = l.Close()
		ports.used[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("looking for a free port: %w", last)
}

// freePorts returns n ports as FreePort does.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// withFreePorts calls start, which gets free ports and starts servers on them. If another process took a port first,
// withFreePorts calls start again.
func withFreePorts[T any](start func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		started, err := start()
		if !errors.Is(err, errPortTaken) || attempt == portAttempts {
			return started, err
		}
	}
}
