package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"weir/billing"
	"weir/gateway/replay"
	"weir/migrations"
	"weir/responses"
	"weir/tenants"
)

// The queues of jobs. Background runs wait for model servers for as long as it
// takes: they have a queue of their own, so that they hold up nothing else.
const (
	queueRuns   = "runs"
	queueChores = "chores"

	choreWorkers = 4
	sweepEvery   = time.Minute
	sweepBatch   = 500
	reclaimEvery = 5 * time.Second

	answersEvery = 5 * time.Minute
	answersBatch = 5000
	answerBytes  = 256 << 20 // of a tenant's kept answers
)

// jobs is the queue of work that outlives requests and processes. Any replica
// does any of it; what is to be done once at a time says so itself.
type jobs struct {
	log     *slog.Logger
	worker  *pgxpool.Pool
	books   *billing.Books
	client  *river.Client[pgx.Tx]
	running atomic.Bool
}

// runArgs are the job that makes a background response. It names it, and
// nothing that is in it.
type runArgs struct {
	Tenant   string `json:"tenant"`
	Response string `json:"response"`
}

// Kind is the job's name in the queue.
func (runArgs) Kind() string { return "response_run" }

type runWorker struct {
	river.WorkerDefaults[runArgs]

	work func(ctx context.Context, id responses.RunID) error
}

// Timeout is none: the time limits of the model bound a run.
func (w *runWorker) Timeout(*river.Job[runArgs]) time.Duration { return -1 }

// Work does one job.
func (w *runWorker) Work(ctx context.Context, job *river.Job[runArgs]) error {
	err := w.work(ctx, responses.RunID{Tenant: tenants.ID(job.Args.Tenant), Response: job.Args.Response})
	if again, ok := errors.AsType[*responses.Again](err); ok {
		return river.JobSnooze(again.After)
	}
	return err
}

// sweepArgs are the job that removes what has expired.
type sweepArgs struct{}

// Kind is the job's name in the queue.
func (sweepArgs) Kind() string { return "response_sweep" }

// reclaimArgs are the job that finds background runs whose runner vanished.
type reclaimArgs struct{}

// Kind is the job's name in the queue.
func (reclaimArgs) Kind() string { return "response_reclaim" }

// answersArgs are the job that removes kept answers that have expired.
type answersArgs struct{}

// Kind is the job's name in the queue.
func (answersArgs) Kind() string { return "answer_sweep" }

// sweepAnswers removes them in batches, until none is left.
func (j *jobs) sweepAnswers(ctx context.Context) error {
	for {
		n, err := replay.Expire(ctx, j.worker, answersBatch, answerBytes)
		if err != nil || n < answersBatch {
			return err
		}
	}
}

// start makes the client, once everything is there that it works for. runs is
// how many background responses this replica makes at once; settle settles what
// dead replicas left.
func (j *jobs) start(background *responses.Background, runs int, settle func(context.Context) error) error {
	workers := river.NewWorkers()
	err := errors.Join(
		river.AddWorkerSafely(workers, &runWorker{work: background.Work}),
		river.AddWorkerSafely(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[sweepArgs]) error {
			return responses.Sweep(ctx, j.worker, sweepBatch)
		})),
		river.AddWorkerSafely(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[reclaimArgs]) error {
			return background.Reclaim(ctx)
		})),
		river.AddWorkerSafely(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[answersArgs]) error {
			return j.sweepAnswers(ctx)
		})),
		river.AddWorkerSafely(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[orphanArgs]) error {
			return settle(ctx)
		})),
		addBooks(workers, j.books),
	)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	j.client, err = river.NewClient(riverpgxv5.New(j.worker), &river.Config{
		Schema: migrations.JobsSchema, Workers: workers, Logger: j.log.With("part", "jobs"),
		Queues: map[string]river.QueueConfig{
			queueRuns: {MaxWorkers: runs}, queueChores: {MaxWorkers: choreWorkers},
		},
		PeriodicJobs: []*river.PeriodicJob{
			periodic(sweepEvery, sweepArgs{}), periodic(reclaimEvery, reclaimArgs{}), periodic(orphansEvery, orphanArgs{}),
			periodic(turnEvery, turnArgs{}), periodic(auditEvery, auditArgs{}),
			periodic(answersEvery, answersArgs{}),
		},
		// Runs have no time limit, and find out for themselves what became of
		// a replica that vanished: this is for what was left of its jobs.
		RescueStuckJobsAfter:        24 * time.Hour,
		CompletedJobRetentionPeriod: time.Hour,
		ReindexerSchedule:           river.NeverSchedule(), // the worker owns no index
	})
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}

// periodic adds a chore to the queue every so often, unless one waits there.
func periodic[T river.JobArgs](every time.Duration, args T) *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(every), func() (river.JobArgs, *river.InsertOpts) {
		return args, &river.InsertOpts{Queue: queueChores, MaxAttempts: 1}
	}, &river.PeriodicJobOpts{RunOnStart: true})
}

// enqueueRun adds the job of a background response in the transaction.
func (j *jobs) enqueueRun(ctx context.Context, tx pgx.Tx, id responses.RunID) error {
	_, err := j.client.InsertTx(ctx, tx, runArgs{Tenant: string(id.Tenant), Response: id.Response}, &river.InsertOpts{Queue: queueRuns})
	if err != nil {
		return fmt.Errorf("enqueue run of %s: %w", id.Response, err)
	}
	return nil
}

// Run does jobs until ctx ends. Then runs that are under way are given back, for
// another replica.
func (j *jobs) Run(ctx context.Context) error {
	lasting := context.WithoutCancel(ctx)
	for {
		err := j.client.Start(lasting)
		if err == nil {
			break
		}
		j.log.WarnContext(ctx, "jobs can't be started, trying again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	j.running.Store(true)
	<-ctx.Done()
	j.running.Store(false)
	stopping, cancel := context.WithTimeout(lasting, stopJobs)
	defer cancel()
	if err := j.client.StopAndCancel(stopping); err != nil {
		return fmt.Errorf("stop jobs: %w", err)
	}
	return nil
}

// stopJobs bounds how long jobs may take to give back what they have.
const stopJobs = 20 * time.Second

// check is readiness's question.
func (j *jobs) check(context.Context) error {
	if !j.running.Load() {
		return errors.New("no jobs are done here: background responses wait for other replicas")
	}
	return nil
}
