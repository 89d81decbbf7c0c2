/** Where the tokens' ids I32 [T] go along with the residual stream, for blocks that read them. */
export const TOKEN_IDS = 'ids';
