package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

var errEventsPlace = errors.New("write tcp:// and a port on the loopback interface: what is published holds prompts")

// publish serves the KV events of each rank at a port of its own, counted from
// the ones that are named. Empty names publish nothing.
func (s *sim) publish(ctx context.Context, ranks int, events, replay string) error {
	if events == "" {
		return nil
	}
	for rank := range max(ranks, 1) {
		at, err := listenEvents(ctx, events, rank)
		if err != nil {
			return fmt.Errorf("--kv-events: %w", err)
		}
		var again net.Listener
		if replay != "" {
			if again, err = listenEvents(ctx, replay, rank); err != nil {
				return errors.Join(fmt.Errorf("--kv-replay: %w", err), at.Close())
			}
		}
		if err := s.engine.Publish(rank, at, again); err != nil {
			return err
		}
	}
	return nil
}

func listenEvents(ctx context.Context, place string, rank int) (net.Listener, error) {
	address, ok := strings.CutPrefix(place, "tcp://")
	if !ok || !onLoopback(address) {
		return nil, fmt.Errorf("%q: %w", place, errEventsPlace)
	}
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(number)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", place, errEventsPlace)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port+rank)))
}
