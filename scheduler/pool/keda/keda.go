// Package keda tells KEDA how many endpoints a pool should have, as an external
// scaler: KEDA then starts and stops them, down to none and up again.
package keda

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"weir/scheduler/pool"
	"weir/scheduler/pool/keda/externalscaler"
)

// MetricName is the one metric: endpoints that there should be. Its target is
// 1, so that what it says is how many replicas the autoscaler makes.
const MetricName = "weir-desired-replicas"

const (
	maxStreams = 64        // of one connection; KEDA keeps one for each object
	maxMessage = 64 << 10  // bytes
	idleFor    = time.Hour // after which a connection without streams is closed
	lookEvery  = time.Second
)

// Scaler answers KEDA. A trigger's metadata names the pool and, where roles are
// scaled apart, the role.
type Scaler struct {
	externalscaler.UnimplementedExternalScalerServer

	scales func(pool string) ([]pool.Scale, bool)
}

// New makes a scaler that asks scales of a pool by its name; false: there is no
// such pool.
func New(scales func(pool string) ([]pool.Scale, bool)) *Scaler { return &Scaler{scales: scales} }

// Serve answers on the listener until ctx ends, then cuts what is open: KEDA
// connects again. It closes the listener.
func (s *Scaler) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleFor}),
	)
	externalscaler.RegisterExternalScalerServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err := server.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// find is the scale that a trigger asks for.
func (s *Scaler) find(ref *externalscaler.ScaledObjectRef) (pool.Scale, error) {
	name, role := ref.GetScalerMetadata()["pool"], ref.GetScalerMetadata()["role"]
	if name == "" {
		return pool.Scale{}, status.Error(codes.InvalidArgument, "the trigger's metadata names no pool")
	}
	scales, known := s.scales(name)
	switch {
	case !known:
		return pool.Scale{}, status.Errorf(codes.NotFound, "there is no pool %q", name)
	case len(scales) == 0:
		return pool.Scale{}, status.Errorf(codes.Unavailable, "pool %q has no scaling in the catalogue, or isn't watched yet", name)
	}
	for _, scale := range scales {
		if scale.Role == role {
			return scale, nil
		}
	}
	return pool.Scale{}, status.Errorf(codes.NotFound, "pool %q has no role %q", name, role)
}

// IsActive says whether there should be an endpoint at all.
func (s *Scaler) IsActive(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	scale, err := s.find(ref)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: scale.Desired > 0}, nil
}

// StreamIsActive says so at once and whenever it changes, so that a pool without
// endpoints need not wait for KEDA's next question.
func (s *Scaler) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse]) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for sent, last := false, false; ; {
		scale, err := s.find(ref)
		if err != nil {
			return err
		}
		if active := scale.Desired > 0; !sent || active != last {
			sent, last = true, active
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: active}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-look.C:
		}
	}
}

// GetMetricSpec names the metric and its target.
func (s *Scaler) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	if _, err := s.find(ref); err != nil {
		return nil, err
	}
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{
		{MetricName: MetricName, TargetSize: 1, TargetSizeFloat: 1},
	}}, nil
}

// GetMetrics is how many endpoints there should be.
func (s *Scaler) GetMetrics(_ context.Context, r *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	scale, err := s.find(r.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{
		{MetricName: MetricName, MetricValue: int64(scale.Desired), MetricValueFloat: float64(scale.Desired)},
	}}, nil
}
