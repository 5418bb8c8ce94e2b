package devcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Clusters use ports below the range from which the kernel takes ports for outgoing connections (Linux: 32768 and up).
// So no client gets such a port between our look at it and its use, or while its server restarts.
const firstPort, lastPort = 20000, 29999

// portAttempts is how often a server is started, if another process has taken its port meanwhile.
const portAttempts = 4

// errPortTaken says that a process has ended because another one listens on its port.
var errPortTaken = errors.New("its port is taken")

// portTaken is the part of the message that all servers log in this case.
const portTaken = "address already in use"

var ports struct {
	sync.Mutex
	used map[int]bool // by clusters of this process, which may not have bound them yet
}

// FreePort returns a port on loopback that nothing listens on at the moment, and that was not returned before.
func FreePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.used == nil {
		ports.used = map[int]bool{}
	}
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

// freePorts returns n such ports.
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

// withFreePorts calls start, which looks for free ports. It calls start again if a port was taken before it could be
// used.
func withFreePorts[T any](start func() (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		started, err := start()
		if !errors.Is(err, errPortTaken) || attempt == portAttempts {
			return started, err
		}
	}
}
