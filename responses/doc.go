// Package responses is the Responses and Conversations API behind its wire:
// items and the chains they form, the event stream, what is kept and for how
// long. Engines are driven through Chat Completions; the events that callers
// see come from one state machine of this package.
package responses
