//go:build kubernetes_1_36

package compat

import (
	"context"

	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

// NewCache returns the scheduler's cache, empty.
func NewCache(ctx context.Context) cache.Cache { return cache.New(ctx, nil, false) }
