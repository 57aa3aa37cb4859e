package main

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"

	"weir/billing"
)

const (
	turnEvery    = time.Minute
	auditEvery   = 24 * time.Hour
	auditPeriod  = 26 * time.Hour // a little more than the time between two
	auditTimeout = 30 * time.Minute
)

// turnArgs are the job that lets credit take effect and expire.
type turnArgs struct{}

// Kind is the job's name in the queue.
func (turnArgs) Kind() string { return "credit_turn" }

// auditArgs are the job that checks the ledger.
type auditArgs struct{}

// Kind is the job's name in the queue.
func (auditArgs) Kind() string { return "ledger_check" }

type auditWorker struct {
	river.WorkerDefaults[auditArgs]

	books *billing.Books
}

// Timeout is longer than a chore's: it reads a day's receipts.
func (w *auditWorker) Timeout(*river.Job[auditArgs]) time.Duration { return auditTimeout }

// Work does one job.
func (w *auditWorker) Work(ctx context.Context, _ *river.Job[auditArgs]) error {
	now := time.Now()
	return w.books.Watch(ctx, now.Add(-auditPeriod), now)
}

// addBooks adds the chores of the ledger.
func addBooks(workers *river.Workers, books *billing.Books) error {
	return errors.Join(
		river.AddWorkerSafely(workers, &auditWorker{books: books}),
		river.AddWorkerSafely(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[turnArgs]) error {
			return books.Turn(ctx)
		})),
	)
}
