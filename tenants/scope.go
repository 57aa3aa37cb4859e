package tenants

import "slices"

// What a key may be allowed to do. Inference keys take the first eight,
// administration keys the last four.
const (
	ScopeChat        = "inference:chat"
	ScopeCompletions = "inference:completions"
	ScopeEmbeddings  = "inference:embeddings"
	ScopeResponses   = "inference:responses" // and conversations
	ScopeModelsRead  = "models:read"
	ScopeQueueRead   = "queue:read" // of the key's project
	ScopeLimitsRead  = "limits:read"
	ScopeUsageRead   = "usage:read"
	ScopeKeysRead    = "keys:read"
	ScopeKeysWrite   = "keys:write"
	ScopeTenantRead  = "tenant:read"
)

// Scopes lists what a key of the kind may be allowed.
func (k Kind) Scopes() []string {
	switch k {
	case ProjectKey, ServiceKey:
		return []string{ScopeChat, ScopeCompletions, ScopeEmbeddings, ScopeResponses, ScopeModelsRead, ScopeQueueRead, ScopeLimitsRead, ScopeUsageRead}
	case AdminKey:
		return []string{ScopeKeysRead, ScopeKeysWrite, ScopeUsageRead, ScopeTenantRead}
	default:
		return nil
	}
}

// Allows reports whether the key may do what the scope names: its kind must
// have the scope and its own list, where it has one, too.
func (p *Principal) Allows(scope string) bool {
	return slices.Contains(p.Kind.Scopes(), scope) &&
		(len(p.Scopes) == 0 || slices.Contains(p.Scopes, scope))
}
