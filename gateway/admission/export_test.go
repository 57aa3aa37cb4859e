package admission

import "context"

// Heal renews what this replica holds, as Run does every so often.
func (r *Redis) Heal(ctx context.Context) { r.heal(ctx) }

// Flush tells Redis what was released.
func (r *Redis) Flush(ctx context.Context) { r.flush(ctx) }
